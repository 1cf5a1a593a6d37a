"""The GPU's clock against the host's: how far apart they are, and how well that is known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.gpu import Gpu
from engine.queries import TimestampQueries, timestamps_available

MARKERS = 256
LIMIT_S = 0.3
"""No further marker is submitted after so long."""


class Marker(NamedTuple):
    """A tiny pass: begin and end on the GPU's clock, in nanoseconds, and the host's around them.

    The pass was submitted after `submit_ns` and seen complete at `done_ns`.
    """

    submit_ns: int
    begin_ns: int
    end_ns: int
    done_ns: int


@dataclass(frozen=True)
class Calibration:
    """Host time = GPU time + `offset_ns`, within `error_ns`, as found at host time `at_ns`.

    Host time is that of time.perf_counter_ns.
    """

    offset_ns: int
    error_ns: int
    at_ns: int

    @staticmethod
    def fit(markers: Sequence[Marker]) -> Calibration | None:
        """The offsets that no marker contradicts, their middle and half their width.

        A marker allows offsets from submit - begin to done - end. When no offset suits all of
        them, the clocks have run apart meanwhile: the error then covers what they contradict each
        other by, and a marker's own uncertainty besides. None without a sane marker.
        """
        sane = [m for m in markers if 0 < m.begin_ns <= m.end_ns and m.submit_ns <= m.done_ns]
        # Time on the GPU cannot exceed the time around it: such a marker measured nothing.
        sane = [m for m in sane if m.end_ns - m.begin_ns <= m.done_ns - m.submit_ns]
        if not sane:
            return None
        allowed = [(m.submit_ns - m.begin_ns, m.done_ns - m.end_ns) for m in sane]
        least, most = max(low for low, _ in allowed), min(high for _, high in allowed)
        error = (abs(most - least) + 1) // 2
        if least > most:
            error += min(high - low for low, high in allowed)
        at_ns = (sane[0].submit_ns + sane[-1].done_ns) // 2
        return Calibration((least + most) // 2, error, at_ns)

    @property
    def gpu_ns(self) -> int:
        """The GPU's time at `at_ns`."""
        return self.at_ns - self.offset_ns

    def to_json(self) -> dict[str, Any]:
        """As in run.json: offset_ns, error_us, at_ns."""
        return {
            "offset_ns": self.offset_ns,
            "error_us": self.error_ns / 1e3,
            "at_ns": self.at_ns,
        }


class Clock:
    """Maps GPU nanoseconds to the host's: by the start alone, or between start and end."""

    def __init__(self, start: Calibration, end: Calibration | None = None) -> None:
        """Raises ValueError when `end` is no later than `start` on either clock."""
        if end is not None and (end.at_ns <= start.at_ns or end.gpu_ns <= start.gpu_ns):
            raise ValueError("the clock's end calibration must be later than its start")
        self.start, self.end = start, end

    def cpu_ns(self, gpu_ns: int) -> int:
        """Host nanoseconds of a GPU time; with `end` the offset changes linearly with time."""
        offset, since = self.start.offset_ns, gpu_ns - self.start.gpu_ns
        if self.end is not None:
            passed = self.end.gpu_ns - self.start.gpu_ns
            offset += round((self.end.offset_ns - offset) * since / passed)
        return gpu_ns + offset

    @property
    def drift_ppm(self) -> float | None:
        """Microseconds a second that the host's clock gains on the GPU's; None without `end`."""
        if self.end is None:
            return None
        gained = self.end.offset_ns - self.start.offset_ns
        return 1e6 * gained / (self.end.gpu_ns - self.start.gpu_ns)

    @property
    def error_us(self) -> float:
        """How far a mapped time may be off: the larger of the calibrations' errors."""
        return max(c.error_ns for c in (self.start, self.end or self.start)) / 1e3

    def to_json(self) -> dict[str, Any]:
        """The `clock` of run.json: start, end, drift_ppm, error_us."""
        return {
            "start": self.start.to_json(),
            "end": self.end.to_json() if self.end else None,
            "drift_ppm": self.drift_ppm,
            "error_us": self.error_us,
        }


class ClockCalibrator:
    """Owns what calibrating needs, so that calibrating again creates nothing."""

    def __init__(self, gpu: Gpu, markers: int = MARKERS) -> None:
        """At most `markers` (up to 2048) submissions a calibration."""
        self.gpu, self.markers = gpu, markers
        self.available = timestamps_available(gpu)
        if self.available:
            self._queries = TimestampQueries(gpu, 2 * markers)
            self._readback = self._queries.readback(2 * markers)

    def calibrate(self, limit_s: float = LIMIT_S) -> Calibration | None:
        """Compare the clocks; None without timestamps, or when they make no sense.

        Waits for the device, which should have nothing to do; takes up to about `limit_s` besides.
        Raises GpuError when the device is lost.
        """
        if not self.available:
            return None
        self.gpu.wait()
        stop = time.perf_counter() + limit_s
        around: list[tuple[int, int]] = []
        while len(around) < self.markers and (not around or time.perf_counter() < stop):
            around.append(self._mark(2 * len(around), stop))
        stamps = self._queries.read(2 * len(around), self._readback)
        pairs = zip(around, stamps[::2], stamps[1::2], strict=True)
        return Calibration.fit([Marker(s, begin, end, d) for (s, d), begin, end in pairs])

    def _mark(self, query: int, stop: float) -> tuple[int, int]:
        """Submit one empty pass; host times before the submission and after its completion."""
        encoder = self.gpu.device.create_command_encoder()
        encoder.begin_compute_pass(timestamp_writes=self._queries.writes(query)).end()
        submit_ns = time.perf_counter_ns()
        serial = self.gpu.submit(encoder)
        # Without sleep, which would blur the answer; a device that takes its time is waited for.
        while self.gpu.poll() < serial:
            if time.perf_counter() > stop:
                self.gpu.wait()
        return submit_ns, time.perf_counter_ns()
