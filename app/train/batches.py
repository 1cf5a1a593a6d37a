"""Batches made by threads ahead of need, handed out in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

AHEAD = 4
"""Finished batches that wait for the device at most, beside those being made."""


def usual_workers() -> int:
    """Threads that prepare images: one core stays free for the thread that feeds the device."""
    return max(1, min(16, (os.cpu_count() or 2) - 1))


class Batches:
    """`make(number)` for each number, computed ahead by `workers` threads, in order.

    An error in `make` is raised where its batch is due. Close to stop the threads.
    """

    def __init__(
        self, make: Callable[[int], np.ndarray], numbers: range, workers: int | None = None
    ) -> None:
        self._make = make
        self._left = iter(numbers)
        self._workers = workers or usual_workers()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="batches")
        self._pending: deque[Future[np.ndarray]] = deque()

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            for number in self._left:
                self._pending.append(self._pool.submit(self._make, number))
                if len(self._pending) >= self._workers + AHEAD:
                    break
            if not self._pending:
                return
            yield self._pending.popleft().result()

    def close(self) -> None:
        """Drop what nobody asked for; safe to call twice."""
        self._pool.shutdown(wait=True, cancel_futures=True)
