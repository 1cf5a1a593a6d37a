"""Records of made-up processes for tests of the benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from app.bench.cells import Runs
from app.bench.golden import Gradient
from app.bench.protocol import REDUCED, Timing
from app.bench.record import (
    OK,
    Ceilings,
    Framework,
    Job,
    KernelCost,
    Mode,
    Phase,
    PhaseRecord,
    RunRecord,
)

OUTPUT = np.linspace(-1, 1, 300, dtype=np.float32).reshape(1, 300)
GRADIENTS = {"w": Gradient(2.0, 0.5), "b": Gradient(0.1, -0.02)}


def job(workload: str = "smolvla") -> Job:
    return Job(workload, "strict", True, REDUCED, "plans")


def mode(name: str, *samples_ms: float, deviation: float | None = None) -> Mode:
    memory = {"allocated": 1_500_000}
    return Mode(name, 0.5, 0.1, Timing(samples_ms, 1), deviation=deviation, memory=memory)


def record(runner: str, *modes: Mode, workload: str = "smolvla") -> RunRecord:
    """A process that did everything, in the same modes in every phase."""
    phases = tuple(
        PhaseRecord(phase, modes, loss=0.25, gradients=GRADIENTS)
        if phase is Phase.TRAINING
        else PhaseRecord(phase, modes, output_shape=OUTPUT.shape)
        for phase in Phase
    )
    framework = Framework(runner, "1.0", f"{runner} device (kind) via something", "driver 2")
    return RunRecord(
        runner, workload, OK, job(workload), "0.1.0", "2026-01-02", framework, phases=phases
    )


def runs(folder: Path, *records: RunRecord, output: np.ndarray = OUTPUT) -> Runs:
    """The processes of one runner, with the outputs of the first on disk."""
    here = folder / records[0].runner
    here.mkdir(exist_ok=True)
    for phase in (Phase.INFERENCE, Phase.MINIMAL):
        np.save(here / f"{phase}.npy", output)
    return Runs(records, here)


def failed(runner: str, outcome: str) -> RunRecord:
    return RunRecord(runner, "smolvla", outcome, job())


def profiled(found: RunRecord) -> RunRecord:
    """With a plan's sizes and the costs of three kernels in each phase."""
    costs = (
        KernelCost("matmul_nt_1x50x2048x720", "matrix product", 32, 900.0, 4_718_592_000, 10**8),
        KernelCost("permute", "data movement", 88, 400.0, 0, 4 * 10**6),
        KernelCost("permute", "data movement", 2, 50.0, 0, 4 * 10**7),
    )
    plan = {
        "launches": 122,
        "barrier_groups": 60,
        "kernels": 3,
        "wgsl_bytes": 9_000,
        "plan_bytes": 12_000,
        "constant_bytes": 400,
    }
    phases = tuple(replace(phase, kernels=costs, plan=plan) for phase in found.phases)
    return replace(found, phases=phases, ceilings=Ceilings(10_000.0, 1_000.0, True))
