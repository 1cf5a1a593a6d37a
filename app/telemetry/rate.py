"""Events per second and shares of time, for the HUD."""

from __future__ import annotations

from collections import deque

KEPT = 4
"""The newest events count however old they are: a slow device has few in any window."""


class RateMeter:
    """Counts events in a sliding window of `window_s` seconds. Times are ns, not decreasing."""

    def __init__(self, window_s: float = 2.0) -> None:
        if window_s <= 0:
            raise ValueError(f"the window must be positive, not {window_s} s")
        self._window_ns = round(window_s * 1e9)
        self._times: deque[int] = deque()

    def add(self, now_ns: int) -> None:
        """Count one event. The oldest one only starts the clock: n + 1 events make n intervals."""
        self._times.append(now_ns)
        while len(self._times) > KEPT and self._times[1] <= now_ns - self._window_ns:
            self._times.popleft()

    def rate(self, now_ns: int) -> float:
        """Events per second since the oldest counted event; falls when they stop coming."""
        if len(self._times) < 2 or now_ns <= self._times[0]:
            return 0.0
        return (len(self._times) - 1) * 1e9 / (now_ns - self._times[0])


class ShareMeter:
    """Which share of the last `window_s` seconds each of several users took."""

    def __init__(self, window_s: float = 2.0) -> None:
        if window_s <= 0:
            raise ValueError(f"the window must be positive, not {window_s} s")
        self._window_ns = round(window_s * 1e9)
        self._spent: deque[tuple[int, str, float]] = deque()

    def add(self, end_ns: int, user: str, ms: float) -> None:
        """`user` was at work for `ms` until `end_ns`; about in order of time."""
        self._spent.append((end_ns, user, ms))

    def shares(self, now_ns: int) -> dict[str, float]:
        """Share of each user seen in the window, 0..1."""
        while self._spent and self._spent[0][0] < now_ns - self._window_ns:
            self._spent.popleft()
        shares: dict[str, float] = {}
        for _, user, ms in self._spent:
            shares[user] = shares.get(user, 0.0) + ms * 1e6 / self._window_ns
        return shares
