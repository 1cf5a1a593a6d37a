"""A thread that blocks in xrWaitFrame, so that the thread of the GPU need not."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")

JOIN_S = 2.0


class FrameWaiter(Generic[T]):
    """Runs `wait` in its own thread, once per `request`. Use from one thread; never two at once."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait = wait
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[T | BaseException] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="xrWaitFrame", daemon=True)
        self._thread.start()
        self.pending = False
        """Whether a request has not been answered yet."""

    def request(self) -> None:
        """Start waiting, unless a request is pending."""
        if not self.pending:
            self.pending = True
            self._requests.put(True)

    def answer(self, timeout_s: float) -> T | None:
        """What `wait` returned, or None after `timeout_s`. Raises what it raised."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except Empty:
            return None
        self.pending = False
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> bool:
        """End the thread; False when it is still inside `wait` after `JOIN_S`."""
        self._requests.put(False)
        self._thread.join(JOIN_S)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while self._requests.get():
            try:
                self._answers.put(self._wait())
            except BaseException as error:
                self._answers.put(error)
