"""Learning-rate schedules: factors of the rate by update number, computed by the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from engine.errors import GraphError


class Schedule(Protocol):
    """A factor of the learning rate."""

    def __call__(self, update: int, /) -> float:
        """For update number `update`; the first is 1."""


@dataclass(frozen=True)
class Constant:
    """Always 1."""

    def __call__(self, update: int, /) -> float:
        """See Schedule."""
        return 1.0


@dataclass(frozen=True)
class Warmup:
    """A straight line to 1 at update `updates`, then constant."""

    updates: int

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise GraphError(f"schedule: a warm-up takes at least 1 update, not {self.updates}")

    def __call__(self, update: int, /) -> float:
        """See Schedule."""
        return min(1.0, update / self.updates)


@dataclass(frozen=True)
class Cosine:
    """A warm-up to 1 at update `warmup` (0: none), then half a cosine that reaches `final` at
    update `updates` and stays there.
    """

    updates: int
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.updates or not 0 <= self.final <= 1:
            raise GraphError(
                f"schedule: needs 0 <= warmup < updates and 0 <= final <= 1, got {self}"
            )

    def __call__(self, update: int, /) -> float:
        """See Schedule."""
        if update < self.warmup:
            return update / self.warmup
        progress = min(1.0, (update - self.warmup) / (self.updates - self.warmup))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
