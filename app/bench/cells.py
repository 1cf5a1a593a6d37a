"""From records to cells: one workload in one phase, the engine beside the reference, judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.bench import gates
from app.bench.gates import LIMITS, Finding, Limits
from app.bench.golden import Golden
from app.bench.protocol import summary
from app.bench.record import OK, Job, Mode, Phase, PhaseRecord, RunRecord
from app.bench.values import sized

GOOD, BAD = "ok", "fails gate"


@dataclass(frozen=True)
class Runs:
    """All processes of one runner on one workload; the outputs of the first lie in `folder`."""

    records: tuple[RunRecord, ...]
    folder: Path

    @property
    def first(self) -> RunRecord:
        """The process that compiled from scratch, whose results are judged."""
        return self.records[0]

    def missing(self, phase: Phase) -> str:
        """Why there are no figures of a phase; empty when there are."""
        if self.first.outcome != OK:
            return f"{self.first.runner}: {self.first.outcome}"
        found = self.first.phase(phase)
        return found.faults if found else f"{self.first.runner} did not come to it"


@dataclass(frozen=True)
class Timed:
    """The samples of all processes in one mode, ms."""

    mode: str
    samples_ms: tuple[float, ...]

    @property
    def median(self) -> float:
        """The headline."""
        return self.summary["median"]

    @property
    def summary(self) -> dict[str, float]:
        """Median, quartiles, least and most."""
        return summary(self.samples_ms)


@dataclass(frozen=True)
class Cell:
    """`gate` is "ok", "fails gate" or "skipped(reason)"; `why`: what was nearest to its limit."""

    workload: str
    contract: str
    phase: Phase
    engine: Timed | None
    reference: Timed | None
    gate: str
    why: str = ""
    findings: tuple[Finding, ...] = ()
    paper: tuple[Finding, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Engine over reference: below 1, the engine is faster."""
        if self.engine is None or self.reference is None:
            return None
        return self.engine.median / self.reference.median


def limits_of(job: Job) -> Limits:
    """How far the engine's figures may be from a reference's: rounded weights round products."""
    return LIMITS["strict" if job.contract == "strict" and job.storage == "f32" else "accelerated"]


def make_cells(engine: Runs, reference: Runs | None, golden: Golden | None) -> list[Cell]:
    """One cell for each phase, whatever happened."""
    return [_cell(phase, engine, reference, golden) for phase in engine.first.job.phases]


def timed_modes(runs: Runs, phase: Phase) -> list[Timed]:
    """Every mode that was timed, over all processes."""
    modes: dict[str, list[float]] = {}
    for record in runs.records:
        found = record.phase(phase)
        for mode in found.modes if found else ():
            if mode.timing is not None and _right(mode):
                modes.setdefault(mode.name, []).extend(mode.timing.samples_ms)
    return [Timed(name, tuple(samples)) for name, samples in modes.items()]


def _right(mode: Mode) -> bool:
    """A mode that computes something else than its runner's first one does not count."""
    return mode.deviation is None or mode.deviation <= LIMITS["accelerated"].output


def _best(runs: Runs, phase: Phase) -> Timed | None:
    return min(timed_modes(runs, phase), key=lambda timed: timed.median, default=None)


def _cell(phase: Phase, engine: Runs, reference: Runs | None, golden: Golden | None) -> Cell:
    job = engine.first.job
    cell = Cell(
        job.workload,
        job.contract,
        phase,
        _best(engine, phase),
        _best(reference, phase) if reference else None,
        GOOD,
    )
    if missing := engine.missing(phase):
        return replace(cell, gate=f"skipped({missing})")
    findings: list[Finding] = []
    paper: list[Finding] = []
    why_not = "no reference was asked for"
    try:
        if reference is not None:
            why_not = reference.missing(phase)
            if not why_not:
                findings, paper = _against_runner(phase, engine, reference)
        if golden is not None and _same_shape(engine.first, phase):
            against = _against_golden(phase, engine, golden)
            findings, paper = findings + against[0], paper + against[1]
    except (OSError, ValueError) as error:
        return replace(cell, gate=BAD, why=str(error))
    if not findings:
        return replace(cell, gate=f"skipped({why_not})")
    good = all(finding.good for finding in findings)
    return replace(
        cell,
        gate=GOOD if good else BAD,
        why=str(gates.worst(findings)),
        findings=tuple(findings),
        paper=tuple(paper),
    )


def _same_shape(record: RunRecord, phase: Phase) -> bool:
    """Whether the reference file's shape, that of inference, is also the phase's."""
    return sized(record.job, phase)[1] == sized(record.job, Phase.INFERENCE)[1]


Judged = tuple[list[Finding], list[Finding]]
"""By this project's gates, and by the published ones."""


def _against_runner(phase: Phase, engine: Runs, reference: Runs) -> Judged:
    limits = limits_of(engine.first.job)
    if phase is not Phase.TRAINING:
        mine, wanted = _output(engine, phase), _output(reference, phase)
        return gates.judge_output(mine, wanted, limits), gates.paper_output(mine, wanted)
    figures = (*_training(engine), *_training(reference))
    return gates.judge_training(*figures, limits), gates.paper_training(*figures)


def _against_golden(phase: Phase, engine: Runs, golden: Golden) -> Judged:
    limits = limits_of(engine.first.job)
    if phase is not Phase.TRAINING:
        mine = _output(engine, phase)
        found = gates.judge_output(mine, golden, limits), gates.paper_output(mine, golden)
    else:
        figures = (*_training(engine), golden.loss, golden.gradients)
        found = gates.judge_training(*figures, limits), gates.paper_training(*figures)
    return _named(found[0]), _named(found[1])


def _named(findings: Sequence[Finding]) -> list[Finding]:
    return [replace(finding, what=f"{finding.what} (file)") for finding in findings]


def _output(runs: Runs, phase: Phase) -> np.ndarray:
    return np.load(runs.folder / f"{phase}.npy", allow_pickle=False)


def _training(runs: Runs) -> tuple[float, gates.Gradients]:
    found: PhaseRecord | None = runs.first.phase(Phase.TRAINING)
    if found is None or found.loss is None or found.gradients is None:
        raise ValueError(f"{runs.first.runner} gave no gradients")
    return found.loss, found.gradients
