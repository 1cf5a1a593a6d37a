"""Events per second, for the HUD."""

from __future__ import annotations

from collections import deque


class RateMeter:
    """Counts events in a sliding window of `window_s` seconds. Times are ns, not decreasing."""

    def __init__(self, window_s: float = 2.0) -> None:
        if window_s <= 0:
            raise ValueError(f"the window must be positive, not {window_s} s")
        self._window_ns = round(window_s * 1e9)
        self._start_ns: int | None = None
        self._events: deque[int] = deque()

    def add(self, now_ns: int) -> None:
        """Count one event. The first only starts the clock: n + 1 events make n intervals."""
        if self._start_ns is None:
            self._start_ns = now_ns
        else:
            self._events.append(now_ns)
            self._forget(now_ns)

    def rate(self, now_ns: int) -> float:
        """Events per second over the window, or since the first event while that is shorter."""
        if self._start_ns is None or now_ns <= self._start_ns:
            return 0.0
        self._forget(now_ns)
        return len(self._events) * 1e9 / min(self._window_ns, now_ns - self._start_ns)

    def _forget(self, now_ns: int) -> None:
        while self._events and self._events[0] <= now_ns - self._window_ns:
            self._events.popleft()
