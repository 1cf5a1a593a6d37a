"""How every runner is timed: untimed runs until the device is warm, then single timed ones."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Protocol:
    """Untimed runs, at least so many and so long, and timed runs."""

    warm_ups: int
    warm_up_s: float
    samples: int


FULL = Protocol(warm_ups=5, warm_up_s=2.0, samples=20)
"""Of published figures."""
REDUCED = Protocol(warm_ups=1, warm_up_s=0.0, samples=5)
"""Of reduced networks, whose times say nothing."""


@dataclass(frozen=True)
class Timing:
    """Timed runs in milliseconds, in order, and how many untimed ones came before."""

    samples_ms: tuple[float, ...]
    warm_ups: int

    def summary(self) -> dict[str, float]:
        """Median, quartiles, least and most, ms."""
        return summary(self.samples_ms)


def summary(samples_ms: tuple[float, ...]) -> dict[str, float]:
    """Median, quartiles, least and most of one sample or more."""
    points = {"min": 0, "p25": 25, "median": 50, "p75": 75, "max": 100}
    found = np.percentile(samples_ms, list(points.values()))
    return {name: float(value) for name, value in zip(points, found, strict=True)}


def measure(
    run: Callable[[], object],
    wait: Callable[[], object],
    protocol: Protocol,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Timing:
    """Time `run`, which queues work; `wait` returns when the device has none left.

    The clock starts on an idle device and stops on an idle device. The caller has uploaded inputs
    and zeroed what must be zero.
    """
    warm_ups, begin = 0, clock_ns()
    while warm_ups < protocol.warm_ups or clock_ns() - begin < 1e9 * protocol.warm_up_s:
        run()
        wait()
        warm_ups += 1
    samples = []
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(protocol.samples):
            wait()
            start = clock_ns()
            run()
            wait()
            samples.append((clock_ns() - start) / 1e6)
    finally:
        if collecting:
            gc.enable()
    return Timing(tuple(samples), warm_ups)
