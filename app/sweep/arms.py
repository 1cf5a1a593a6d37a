"""The arms of a sweep: settings to compare, and what they are compared with."""

from __future__ import annotations

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
        if self.kind is Kind.RENDER:
            return f"render-{self.hz:g}hz"
        network = f"{self.job}-k{self.chunks}-n{self.in_flight}"
        if self.kind is Kind.WORKER:
            return f"worker-{network}"
        shared = f"{network}-{self.policy}-{self.hz:g}hz"
        return shared if self.kind is Kind.SHARED else f"untraced-{shared}"


def arms_of(config: SweepConfig) -> list[Arm]:
    """All arms of a sweep, those to compare with first."""
    rates, jobs = config.rates, config.jobs
    settings = list(product(jobs, config.chunk_counts, config.bounds))
    shared = [
        Arm(Kind.SHARED, job, chunks, bound, policy, hz)
        for hz, (job, chunks, bound), policy in product(rates, settings, config.policies)
    ]
    middle = shared[len(config.chunk_counts) // 2 * len(config.bounds) * len(config.policies)]
    return [
        *(Arm(Kind.RENDER, "none", 1, 1, "fixed", hz) for hz in rates),
        *(
            Arm(Kind.WORKER, job, chunks, bound, "fixed", rates[0])
            for job, chunks, bound in settings
        ),
        Arm(Kind.UNTRACED, middle.job, middle.chunks, middle.in_flight, middle.policy, middle.hz),
        *shared,
    ]
