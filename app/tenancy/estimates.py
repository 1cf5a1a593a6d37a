"""What the scheduler expects of the GPU: costs learnt from samples, and the work still queued."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SMOOTHING = 0.1
"""Weight of the newest sample; the first ten weigh alike."""

FIRST_SPREAD = 0.1
"""Standard deviation assumed after a single sample, as a share of it."""

OUTLIER = 4.0
"""Samples count as no further than so many standard deviations from the mean."""


class Estimate:
    """Exponentially weighted mean and standard deviation of a stream of samples.

    A single hiccup must not make work look so dear that none is submitted, and nothing learnt, any
    more. A change that lasts is followed within some ten samples, as the deviation grows with it.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self._variance = 0.0
        self._samples = 0

    @property
    def known(self) -> bool:
        """Whether there has been a sample above 0."""
        return self.mean > 0

    @property
    def sd(self) -> float:
        """Standard deviation; 0 while nothing is known."""
        return math.sqrt(self._variance)

    def learn(self, sample: float) -> None:
        """Take a sample."""
        if not self.known:
            self.mean, self._variance, self._samples = sample, (FIRST_SPREAD * sample) ** 2, 1
            return
        self._samples += 1
        weight = max(SMOOTHING, 1 / self._samples)
        limit = OUTLIER * max(self.sd, FIRST_SPREAD * self.mean)
        difference = max(-limit, min(limit, sample - self.mean))
        self.mean += weight * difference
        self._variance = (1 - weight) * (self._variance + weight * difference**2)


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected GPU time and its standard deviation, ms."""

    ms: float
    sd_ms: float


@dataclass(slots=True)
class _Work:
    serial: int
    submit_ns: int
    cost: Cost


class Backlog:
    """Submitted work that is not known to be complete, as one first-in-first-out queue."""

    def __init__(self) -> None:
        self._work: deque[_Work] = deque()
        self._last_done_ns = 0

    def submitted(self, serial: int, submit_ns: int, cost: Cost) -> None:
        """Work went to the queue; serials rise."""
        self._work.append(_Work(serial, submit_ns, cost))

    def completed(self, serial: int, done_ns: int) -> None:
        """Everything up to `serial` was seen complete."""
        while self._work and self._work[0].serial <= serial:
            self._work.popleft()
        self._last_done_ns = done_ns

    def ahead(self, now_ns: int) -> Cost:
        """What a submission made now would wait for.

        Deviations add up: costs are off for common reasons, such as the GPU's clock.
        """
        if not self._work:
            return Cost(0.0, 0.0)
        front = self._work[0]
        begun_ns = max(front.submit_ns, self._last_done_ns)
        passed_ms = max(0.0, (now_ns - begun_ns) / 1e6)
        ms = sum(work.cost.ms for work in self._work) - min(passed_ms, front.cost.ms)
        return Cost(ms, sum(work.cost.sd_ms for work in self._work))
