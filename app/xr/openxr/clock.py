"""XrTime to `time.perf_counter_ns` and back, through the runtime's own conversion."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from app.xr.openxr import xr_time
from app.xr.openxr.binding import checked, function, told
from app.xr.openxr.instance import XrInstance


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class XrClock:
    """Converts times of one instance. Raises `XrError` or `XrLost` when the runtime cannot."""

    def __init__(self, instance: XrInstance) -> None:
        self._instance = instance.handle
        self._windows = sys.platform == "win32"
        there, back = (
            (
                "xrConvertWin32PerformanceCounterToTimeKHR",
                "xrConvertTimeToWin32PerformanceCounterKHR",
            )
            if self._windows
            else ("xrConvertTimespecTimeToTimeKHR", "xrConvertTimeToTimespecTimeKHR")
        )
        pointer = ctypes.c_void_p
        with told("looking up the conversion of times"):
            self._to = function(
                self._instance, there, ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer)
            )
            self._from = function(
                self._instance,
                back,
                ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_int64, pointer),
            )
        self._frequency = _counter_frequency() if self._windows else 0

    def to_xr(self, ns: int) -> int:
        """The XrTime of a `perf_counter_ns` reading; may be 0 or less, see `is_usable`."""
        moment: Any
        if self._windows:
            moment = ctypes.c_int64(xr_time.to_ticks(ns, self._frequency))
        else:
            moment = Timespec(*xr_time.to_timespec(ns))
        result = ctypes.c_int64()
        with told("converting a time"):
            checked(self._to(self._instance, ctypes.byref(moment), ctypes.byref(result)))
        return result.value

    def to_ns(self, time: int) -> int:
        """The `perf_counter_ns` reading at an XrTime."""
        moment: Any = ctypes.c_int64() if self._windows else Timespec()
        with told("converting a time"):
            checked(self._from(self._instance, time, ctypes.byref(moment)))
        if self._windows:
            return xr_time.from_ticks(moment.value, self._frequency)
        return xr_time.from_timespec(moment.seconds, moment.nanoseconds)


def _counter_frequency() -> int:
    frequency = ctypes.c_int64()
    ctypes.windll.kernel32.QueryPerformanceFrequency(  # type: ignore[attr-defined,unused-ignore]
        ctypes.byref(frequency)
    )
    return frequency.value
