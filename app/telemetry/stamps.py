"""GPU times of passes on the CPU's clock, for the frame loop."""

from __future__ import annotations

import wgpu

from engine.clock import Clock
from engine.timestamps import GpuTimer, Span


class Stamps:
    """Reserves stamps, downloads them beside the mirror, and maps them to `perf_counter_ns`.

    Without a timer or a clock (the device has no timestamps, or nothing is to be measured) there
    are none. Has the methods of a Viewer, so that downloads need no submission of their own.
    """

    def __init__(self, timer: GpuTimer | None, clock: Clock | None) -> None:
        self._timer = timer if clock is not None else None
        self._clock = clock

    def span(self) -> Span | None:
        """Stamps for one pass, which must be submitted; None when there are none to be had."""
        return self._timer.span() if self._timer is not None else None

    def draw(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """Record the download of stamps that are due."""
        return self._timer is not None and self._timer.record(encoder)

    def submitted(self, serial: int) -> None:
        """See Viewer."""
        if self._timer is not None:
            self._timer.submitted(serial)

    def poll(self) -> None:
        """Nothing to do: see `take`."""

    def take(self) -> list[tuple[int, int, int]]:
        """(span number, begin, end) that have arrived, in ns of `time.perf_counter_ns`."""
        if self._timer is None or self._clock is None:
            return []
        to_cpu = self._clock.cpu_ns
        return [(number, to_cpu(begin), to_cpu(end)) for number, begin, end in self._timer.take()]
