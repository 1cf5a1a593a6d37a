"""The arms of a sweep: settings to compare, and what they are compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from app.sweep.config import SweepConfig


class Kind(StrEnum):
    """Who is at work in an arm."""

    SHARED = "shared"
    """Both tenants."""
    RENDER = "render"
    """The renderer alone."""
    WORKER = "worker"
    """The network alone: nothing is shown, and it gets the whole GPU."""
    UNTRACED = "untraced"
    """Both, without GPU stamps and records: what telemetry itself costs."""


@dataclass(frozen=True)
class Arm:
    """One setting. `chunks` and `in_flight` are K and N; `hz` the refresh rate."""

    kind: Kind
    job: str
    chunks: int
    in_flight: int
    policy: str
    hz: float

    @property
    def name(self) -> str:
        """Unique in a sweep, and fit for a folder."""
        rate = f"{float(self.hz)!r}hz".replace(".0hz", "hz")
        if self.kind is Kind.RENDER:
            return f"render-{rate}"
        network = f"{self.job}-k{self.chunks}-n{self.in_flight}"
        if self.kind is Kind.WORKER:
            return f"worker-{network}"
        shared = f"{network}-{self.policy}-{rate}"
        return shared if self.kind is Kind.SHARED else f"untraced-{shared}"


def arms_of(config: SweepConfig) -> list[Arm]:
    """All arms of a sweep, those to compare with first."""
    rates, settings = config.rates, config.settings
    shared = [
        Arm(Kind.SHARED, job, chunks, bound, policy, hz)
        for hz, (job, chunks, bound, policy) in product(rates, settings)
    ]
    alone = dict.fromkeys((job, chunks, bound) for job, chunks, bound, _ in settings)
    middle = shared[len(settings) // 2]
    return [
        *(Arm(Kind.RENDER, "none", 1, 1, "fixed", hz) for hz in rates),
        *(Arm(Kind.WORKER, job, chunks, bound, "fixed", rates[0]) for job, chunks, bound in alone),
        Arm(Kind.UNTRACED, middle.job, middle.chunks, middle.in_flight, middle.policy, middle.hz),
        *shared,
    ]


def shuffled(arms: Sequence[Arm], repeats: int, seed: int) -> list[tuple[Arm, int]]:
    """Every arm once per repeat, in random order within it: drift of the machine hits all alike."""
    draw = random.Random(seed)
    return [
        (arm, repeat) for repeat in range(1, repeats + 1) for arm in draw.sample(arms, len(arms))
    ]
