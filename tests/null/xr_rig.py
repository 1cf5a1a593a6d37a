"""An application and a GPU on a fake clock, for tests of the simulated headset."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.xr.driver import FrameResult, FrameTiming
from app.xr.simulated import SimulatedDriver

MS = 1_000_000


class FakeClock:
    def __init__(self, now_ns: int = 1_234_567_891_234) -> None:
        self.now = now_ns

    def now_ns(self) -> int:
        return self.now

    def sleep_ns(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self.now += max(duration_ns, 1_000)


@dataclass
class Rig:
    """An application on a fake clock; `idle` tells the completions that are due."""

    hz: float = 100.0
    idle_costs_ns: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    due: list[tuple[int, int, int]] = field(default_factory=list)  # tell at, frame, completed
    idle_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = SimulatedDriver(self.hz, clock=self.clock)
        self.driver.open()
        self.epoch = self.clock.now
        self.period = self.driver.period_ns

    def idle(self) -> None:
        self.idle_at.append(self.clock.now)
        self.clock.now += self.idle_costs_ns
        self.tell()

    def tell(self) -> None:
        for entry in sorted(self.due):
            if entry[0] <= self.clock.now:
                self.due.remove(entry)
                self.driver.frame_completed(entry[1], entry[2])

    def vsync_of(self, ns: int) -> int:
        number, rest = divmod(ns - self.epoch, self.period)
        assert rest == 0, "displayed between two vsyncs"
        return number

    def frame(
        self, *, cpu_ns: int = MS, gpu_ns: int | None = MS, told_after_ns: int = 0
    ) -> FrameTiming:
        timing = self.driver.wait_frame(self.idle)
        self.driver.begin_frame()
        self.clock.now += cpu_ns
        self.driver.end_frame(timing.frame_id)
        if gpu_ns is not None:
            done = self.clock.now + gpu_ns
            self.due.append((done + told_after_ns, timing.frame_id, done))
        return timing

    def finish(self) -> list[FrameResult]:
        self.clock.now += 10_000 * MS
        self.tell()
        return self.driver.results()
