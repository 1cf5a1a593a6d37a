"""What a runner is: one framework, alone in a process, that runs one workload phase by phase.

A runner NAME is the module `app.bench.runner_NAME`, one file. It calls `serve` with a function that
opens its framework; times, results and the record are the same for all. The process is

    python -m app.bench.runner_NAME FOLDER

with the job in FOLDER/job.json. It leaves FOLDER/record.json, and as FOLDER/PHASE.npy the output
of each forward phase.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from app.bench.gates import relative_l2
from app.bench.golden import Gradient
from app.bench.machine import clocks, machine
from app.bench.protocol import measure
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
    load_job,
    save,
)
from app.revision import revision

JOB, RECORD = "job.json", "record.json"


class Skip(Exception):  # noqa: N818
    """The runner cannot do such a job here; the message says why."""


@dataclass(frozen=True)
class Results:
    """What one run gave: the output of a forward phase, loss and gradients of training.

    Gradients are in native layouts, f32, by name.
    """

    output: np.ndarray | None = None
    loss: float | None = None
    gradients: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class Prepared:
    """A phase that can be run: parameters and inputs are on the device.

    `compile_s`: what compiling took, seconds, without uploads; None: nothing was compiled. `run`
    queues the phase once. `check` gives a few figures of the newest run, for comparison with the
    runner's other modes.
    """

    run: Callable[[], object]
    compile_s: float | None
    check: Callable[[], np.ndarray]
    results: Callable[[], Results]
    memory: Callable[[], dict[str, int]]
    plan: Mapping[str, int] = field(default_factory=dict)
    profile: Callable[[], Sequence[KernelCost] | None] = lambda: None


class Runner(Protocol):
    """One framework. `faults`: exceptions that only cost the mode at hand."""

    faults: tuple[type[Exception], ...]

    @property
    def framework(self) -> Framework:
        """What computes, and on what."""
        ...

    def modes(self, phase: Phase) -> Mapping[str, Callable[[], Prepared]]:
        """Ways to run a phase, by name; the first one's results are the runner's."""
        ...

    def wait(self) -> None:
        """Return when the device has no work left."""
        ...

    def ceilings(self) -> Ceilings | None:
        """What the device can do at best; None where the runner cannot tell."""
        ...


def serve(open_runner: Callable[[Job], Runner]) -> int:
    """The process: do the job in the folder that the command line names; the exit status."""
    folder = Path(sys.argv[1])
    name = Path(sys.argv[0]).stem.removeprefix("runner_")
    save(folder / RECORD, perform(name, load_job(folder / JOB), open_runner, folder))
    return 0


def perform(name: str, job: Job, open_runner: Callable[[Job], Runner], folder: Path) -> RunRecord:
    """Do a job; outputs go to `folder`. Raises what the framework raises outside of modes."""
    record = RunRecord(
        runner=name,
        workload=job.workload,
        outcome=OK,
        job=job,
        revision=revision(),
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
    )
    try:
        runner = open_runner(job)
    except Skip as reason:
        return replace(record, outcome=f"skipped: {reason}")
    phases = tuple(_phase(runner, job, phase, folder) for phase in job.phases)
    ceilings = runner.ceilings() if job.profile else None
    return replace(record, framework=runner.framework, phases=phases, ceilings=ceilings)


def _phase(runner: Runner, job: Job, phase: Phase, folder: Path) -> PhaseRecord:
    record, first = PhaseRecord(phase, ()), None
    for name, prepare in runner.modes(phase).items():
        try:
            prepared = prepare()
            mode = Mode(name, prepared.compile_s)
            if job.compile_only:
                return replace(record, modes=(mode,))
            begin = time.perf_counter()
            prepared.run()
            runner.wait()
            mode = replace(mode, first_run_s=time.perf_counter() - begin)
            mode = replace(mode, timing=measure(prepared.run, runner.wait, job.protocol))
            if first is None:
                record = replace(record, clocks=clocks())
                record = _with_results(record, prepared, folder)
                first = prepared.check()
                if job.profile:
                    record = replace(record, kernels=_tuple(prepared.profile()))
            else:
                mode = replace(mode, deviation=relative_l2(prepared.check(), first))
            mode = replace(mode, memory=prepared.memory())
        except runner.faults as error:
            mode = Mode(name, fault=" ".join(str(error).split())[:300] or type(error).__name__)
        record = replace(record, modes=(*record.modes, mode))
        prepared = None  # type: ignore[assignment]
    return record


def _with_results(record: PhaseRecord, prepared: Prepared, folder: Path) -> PhaseRecord:
    """The record with all that gates need, of which the output goes to a file of its own."""
    results = prepared.results()
    record = replace(record, loss=results.loss, plan=dict(prepared.plan))
    if results.output is not None:
        np.save(folder / f"{record.phase}.npy", results.output)
        record = replace(record, output_shape=results.output.shape)
    if results.gradients is not None:
        found = {name: Gradient.of(name, value) for name, value in results.gradients.items()}
        record = replace(record, gradients=found)
    return record


def _tuple(costs: Sequence[KernelCost] | None) -> tuple[KernelCost, ...] | None:
    return None if costs is None else tuple(costs)
