"""Times of other clocks as the nanoseconds of `time.perf_counter_ns`; pure arithmetic.

On Linux that clock is CLOCK_MONOTONIC, which XR_KHR_convert_timespec_time speaks; on Windows it is
the performance counter, which XR_KHR_win32_convert_performance_counter_time speaks.
"""

from __future__ import annotations

SECOND_NS = 1_000_000_000


def to_timespec(ns: int) -> tuple[int, int]:
    """Whole seconds and the nanoseconds beyond them, the latter 0 to 999,999,999."""
    return divmod(ns, SECOND_NS)


def from_timespec(seconds: int, nanoseconds: int) -> int:
    """Nanoseconds of a timespec."""
    return seconds * SECOND_NS + nanoseconds


def to_ticks(ns: int, frequency: int) -> int:
    """Performance counter ticks, `frequency` of them a second."""
    return ns * frequency // SECOND_NS


def from_ticks(ticks: int, frequency: int) -> int:
    """Nanoseconds of a performance counter reading."""
    return ticks * SECOND_NS // frequency


def is_usable(xr_time: int) -> bool:
    """Whether a runtime's time may be passed on: xrLocateSpace and others refuse 0 and below."""
    return xr_time > 0
