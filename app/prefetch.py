"""Values made by threads ahead of need, handed out in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
Key = TypeVar("Key")

AHEAD = 4
"""Finished values that wait at most, beside those being made."""


def usual_workers() -> int:
    """Threads that prepare images: one core stays free for the thread that feeds the device."""
    return max(1, min(16, (os.cpu_count() or 2) - 1))


class Prefetch(Generic[T]):
    """`make(key)` for each key, in their order, computed ahead by `workers` threads.

    An error in `make` is raised where its value is due. A context manager that stops the threads;
    to be iterated over once.
    """

    def __init__(
        self, make: Callable[[Key], T], keys: Iterable[Key], workers: int | None = None
    ) -> None:
        self._most = (workers or usual_workers()) + AHEAD
        self._pool = ThreadPoolExecutor(self._most - AHEAD, thread_name_prefix="prefetch")
        self._started: Iterator[Future[T]] = (self._pool.submit(make, key) for key in keys)
        self._pending: deque[Future[T]] = deque()

    def __iter__(self) -> Iterator[T]:
        while True:
            for future in self._started:
                self._pending.append(future)
                if len(self._pending) >= self._most:
                    break
            if not self._pending:
                return
            yield self._pending.popleft().result()

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
