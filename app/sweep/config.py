"""Options of the sweep, checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar

from app.config import SessionConfig, UsageError, check_hz
from app.tenancy.policy import POLICIES
from app.xr.presenter import PresenterChoice

N = TypeVar("N", int, float)

JOBS = ("train", "infer", "both")
ARM = re.compile(rf"({'|'.join(JOBS)})-k(\d+)-n(\d+)-({'|'.join(POLICIES)})")


@dataclass(frozen=True)
class SweepConfig(SessionConfig):
    """Compare chunk counts, in-flight bounds and policies: what both tenants pay, with intervals.

    Every arm is run several times, all arms in random order, beside the renderer alone and the
    network alone. Lists are written with commas: 1,2,4.
    """

    chunks: str = "1,2,4,8,12,16"
    """Chunk counts (K)."""
    in_flight: str = "1,2"
    """In-flight bounds (N)."""
    policy: str = "fixed"
    """Policies: fixed, greedy, deadline."""
    job: str = "both"
    """Jobs: train, infer, both."""
    hz: str = "90"
    """Refresh rates of the simulated headset, Hz."""
    arms: str = ""
    """Exactly these arms instead of all combinations of the above: JOB-kCHUNKS-nBOUND-POLICY, as
    train-k4-n8-deadline,train-k1-n2-fixed."""
    seconds: float = 10.0
    """Measured time of each run, seconds."""
    warm_up: float = 1.0
    """Time before that, left out of all figures, seconds."""
    repeats: int = 3
    """Runs of each arm."""
    render_share: float | None = None
    """Choose --scene-load so that the renderer alone takes this share of a refresh, percent."""
    driver: Literal["simulated", "openxr"] = "simulated"
    """Headset; openxr: the active runtime's, which decides on the refresh rate."""
    presenter: PresenterChoice = "auto"
    """With --driver openxr: how eye images reach the runtime, as with headset."""
    out: Path = Path("runs/sweep")
    """Folder for runs and results; an earlier sweep in it is replaced."""

    @property
    def shares_images(self) -> bool:
        """Whether images are to be shared between devices, if that can be."""
        return self.driver == "openxr" and self.presenter == "shared"

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        for option, values in (("--chunks", self.chunk_counts), ("--in-flight", self.bounds)):
            if any(value < 1 for value in values):
                raise UsageError(f"{option} must be at least 1 each, not {min(values)}")
        _choose("--policy", self.policies, POLICIES)
        _choose("--job", self.jobs, JOBS)
        if any(chunks < 1 or bound < 1 for _, chunks, bound, _ in self.settings):
            raise UsageError(f"--arms must have 1 chunk and 1 in flight at least: '{self.arms}'")
        for hz in self.rates:
            check_hz(hz)
        if self.driver == "openxr" and len(self.rates) > 1:
            raise UsageError("--driver openxr takes one --hz: the headset has one refresh rate")
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"--seconds must be above 0, not {self.seconds:g}")
        if not 0 <= self.warm_up < math.inf:
            raise UsageError(f"--warm-up must be at least 0, not {self.warm_up:g}")
        if self.repeats < 1:
            raise UsageError(f"--repeats must be at least 1, not {self.repeats}")
        if self.render_share is not None and not 0 < self.render_share < 100:
            raise UsageError(f"--render-share must be 0 to 100 percent, not {self.render_share:g}")
        if self.render_share is not None and self.scene_load:
            raise UsageError("--render-share and --scene-load exclude each other")

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """--chunks as numbers."""
        return _numbers("--chunks", self.chunks, int)

    @property
    def bounds(self) -> tuple[int, ...]:
        """--in-flight as numbers."""
        return _numbers("--in-flight", self.in_flight, int)

    @property
    def policies(self) -> tuple[str, ...]:
        """--policy as names."""
        return _list("--policy", self.policy)

    @property
    def jobs(self) -> tuple[str, ...]:
        """--job as names."""
        return _list("--job", self.job)

    @property
    def settings(self) -> tuple[tuple[str, int, int, str], ...]:
        """(job, chunks, bound, policy) of every arm: those of --arms, or all combinations."""
        if not self.arms:
            return tuple(product(self.jobs, self.chunk_counts, self.bounds, self.policies))
        found = [ARM.fullmatch(part) for part in _list("--arms", self.arms)]
        if None in found:
            raise UsageError(f"--arms must be a list such as train-k4-n2-fixed, not '{self.arms}'")
        settings = ((m[1], int(m[2]), int(m[3]), m[4]) for m in found if m is not None)
        return tuple(dict.fromkeys(settings))

    @property
    def rates(self) -> tuple[float, ...]:
        """--hz as numbers."""
        return _numbers("--hz", self.hz, float)


def _list(option: str, text: str) -> tuple[str, ...]:
    """The parts of a comma-separated list, each once. Raises UsageError when one is empty."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in parts:
        raise UsageError(f"{option} must be a list such as 1,2,4, not '{text}'")
    return parts


def _numbers(option: str, text: str, kind: type[N]) -> tuple[N, ...]:
    try:
        return tuple(dict.fromkeys(kind(part) for part in _list(option, text)))
    except ValueError:
        raise UsageError(f"{option} must be numbers such as 1,2,4, not '{text}'") from None


def _choose(option: str, chosen: tuple[str, ...], possible: tuple[str, ...]) -> None:
    for name in chosen:
        if name not in possible:
            raise UsageError(f"{option} takes {', '.join(possible)}, not '{name}'")
