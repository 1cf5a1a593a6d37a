"""What can go wrong in training."""

from __future__ import annotations

from pathlib import Path


class TrainError(Exception):
    """Training cannot start or go on; the message says why and what to do."""


def require_steps_left(resumed: Path | None, learnt: int, steps: int) -> None:
    """Raise TrainError if the resumed checkpoint has learnt all the steps asked for."""
    if learnt >= steps:
        raise TrainError(f"{resumed} has learnt {learnt} steps: ask for more with --steps")
