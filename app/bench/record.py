"""What one process of a runner found out about one workload, as data and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from app.bench.golden import Gradient
from app.bench.protocol import Protocol, Timing
from engine.atomic import write_atomic
from engine.implementations import Choice
from engine.storage import Storage

T = TypeVar("T")

SCHEMA = 1
OK = "ok"


class Phase(StrEnum):
    """What is timed. Nothing updates parameters: training is forward, loss and backward."""

    INFERENCE = "inference"
    MINIMAL = "minimal"
    TRAINING = "training"


@dataclass(frozen=True)
class Job:
    """What a process is to do. `caches`: folder of compiled plans, kept by the caller."""

    workload: str
    contract: str
    reduced: bool
    protocol: Protocol
    caches: str
    compile_only: bool = False
    profile: bool = False
    peak_gflops: float | None = None
    """Known ceiling of the device's f32 arithmetic; None: measured for the profile."""
    peak_gbs: float | None = None
    """Known ceiling of its memory, GB/s; None: measured for the profile."""
    gpu: Choice = "auto"
    """The engine's WebGPU implementation."""
    weights: str = ""
    """File of published weights; "": values that depend on names only."""
    storage: Storage = "f32"
    """Of the engine's matrices."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What is to be timed: weights that are stored as f16 are not trained."""
        return tuple(p for p in Phase if self.storage == "f32" or p is not Phase.TRAINING)


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at best: f32 arithmetic, 2 per multiply-add, and memory traffic."""

    gflops: float
    gbs: float
    measured: bool


@dataclass(frozen=True)
class KernelCost:
    """All launches of one kernel in a run: time, arithmetic and bytes bound, summed."""

    label: str
    family: str
    launches: int
    us: float
    flops: int
    nbytes: int


@dataclass(frozen=True)
class Mode:
    """One way to run a phase. Without a timing `fault` says why."""

    name: str
    compile_s: float | None = None
    first_run_s: float | None = None
    """The run after that, in which drivers may still compile."""
    timing: Timing | None = None
    fault: str = ""
    deviation: float | None = None
    """Relative L2 between this mode's results and those of the runner's first mode."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes by what they are."""


@dataclass(frozen=True)
class PhaseRecord:
    """One phase. `plan`: sizes of what was compiled, where the runner knows them."""

    phase: Phase
    modes: tuple[Mode, ...]
    output_shape: tuple[int, ...] | None = None
    loss: float | None = None
    gradients: dict[str, Gradient] | None = None
    clocks: dict[str, float] = field(default_factory=dict)
    plan: dict[str, int] = field(default_factory=dict)
    kernels: tuple[KernelCost, ...] | None = None

    @property
    def best(self) -> Mode | None:
        """The fastest mode that was timed."""
        timed = [mode for mode in self.modes if mode.timing is not None]
        return min(timed, key=lambda mode: mode.timing.summary()["median"], default=None)  # type: ignore[union-attr]

    @property
    def faults(self) -> str:
        """Why there is no timing; empty when there is one."""
        return "" if self.best else "; ".join(f"{m.name}: {m.fault}" for m in self.modes)


@dataclass(frozen=True)
class Framework:
    """What computes, and on what."""

    name: str
    version: str
    device: str
    driver: str = ""
    precision: dict[str, str] = field(default_factory=dict)
    """Settings that decide about precision, as read back."""
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """One process. `outcome`: "ok", or without phases "skipped: ..." or "error: ..."."""

    runner: str
    workload: str
    outcome: str
    job: Job
    revision: str = ""
    begun: str = ""
    """UTC, ISO 8601."""
    framework: Framework | None = None
    machine: dict[str, str] = field(default_factory=dict)
    phases: tuple[PhaseRecord, ...] = ()
    ceilings: Ceilings | None = None
    schema: int = SCHEMA

    def phase(self, phase: Phase) -> PhaseRecord | None:
        """The record of a phase; None when the process did not come to it."""
        return next((found for found in self.phases if found.phase == phase), None)

    def compile_s(self, mode: str | None = None) -> float | None:
        """Seconds to compile all sessions, in the named mode or the first one."""
        return _total([found.compile_s if found else None for found in self._modes(mode)])

    def first_runs_s(self) -> float | None:
        """Seconds of the first run of all sessions, in the first mode."""
        return _total([found.first_run_s if found else None for found in self._modes(None)])

    def _modes(self, name: str | None) -> list[Mode | None]:
        """The named mode of each phase, or its first one."""
        found = []
        for phase in self.job.phases:
            record = self.phase(phase)
            modes = record.modes if record else ()
            found.append(next((m for m in modes if name is None or m.name == name), None))
        return found


def _total(seconds: list[float | None]) -> float | None:
    """The sum; None when one is not known."""
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None


def save(path: Path, value: Job | RunRecord) -> None:
    """Write a record whole. Raises OSError."""
    write_atomic(path, json.dumps(msgspec.to_builtins(value), indent=1) + "\n")


def load_job(path: Path) -> Job:
    """Raises OSError, or ValueError where the file is none."""
    return _load(path, Job)


def load_record(path: Path) -> RunRecord:
    """Raises OSError, or ValueError where the file is none."""
    return _load(path, RunRecord)


def _load(path: Path, kind: type[T]) -> T:
    # The standard parser, because a loss may be NaN.
    try:
        return msgspec.convert(json.loads(path.read_text()), kind)
    except ValueError as error:
        raise ValueError(f"{path} is no {kind.__name__}: {error}") from error
