"""The timing protocol on a clock that tests turn."""

from __future__ import annotations

import gc

import pytest

from app.bench.protocol import FULL, Protocol, Timing, measure

MS = 1_000_000


class Device:
    """Work takes as long as `costs` say, in ms, the last one from then on; only `wait` waits."""

    def __init__(self, *costs: float, submit_ms: float = 0.0) -> None:
        self.now, self.costs, self.submit_ms = 0, list(costs), submit_ms
        self.calls: list[str] = []
        self.pending = 0.0
        self.collecting: list[bool] = []

    def clock(self) -> int:
        return self.now

    def run(self) -> None:
        self.calls.append("run")
        self.collecting.append(gc.isenabled())
        self.now += round(self.submit_ms * MS)
        self.pending += self.costs.pop(0) if len(self.costs) > 1 else self.costs[0]

    def wait(self) -> None:
        self.calls.append("wait")
        self.now += round(self.pending * MS)
        self.pending = 0.0

    def measure(self, protocol: Protocol) -> Timing:
        return measure(self.run, self.wait, protocol, self.clock)


def test_warm_ups_are_many_enough_and_long_enough() -> None:
    assert Device(1000).measure(Protocol(5, 2.0, 1)).warm_ups == 5
    assert Device(100).measure(Protocol(5, 2.0, 1)).warm_ups == 20
    assert Device(100).measure(Protocol(0, 0.0, 1)).warm_ups == 0


def test_samples_are_single_runs_on_an_idle_device_in_order() -> None:
    device = Device(50, 50, 1, 2, 3, submit_ms=0.5)
    timing = device.measure(Protocol(2, 0.0, 3))
    assert timing.samples_ms == (1.5, 2.5, 3.5)
    assert device.calls == ["run", "wait"] * 2 + ["wait", "run", "wait"] * 3


def test_nothing_is_collected_between_samples() -> None:
    device = Device(1)
    device.measure(Protocol(1, 0.0, 3))
    assert device.collecting == [True, False, False, False] and gc.isenabled()

    def fail() -> None:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        measure(fail, fail, Protocol(0, 0.0, 1), device.clock)
    assert gc.isenabled()


def test_the_headline_is_the_median() -> None:
    found = Timing((5.0, 1.0, 2.0, 3.0, 4.0), 5).summary()
    assert found == {"min": 1.0, "p25": 2.0, "median": 3.0, "p75": 4.0, "max": 5.0}


def test_published_figures_follow_the_protocol() -> None:
    assert Protocol(warm_ups=5, warm_up_s=2.0, samples=20) == FULL
