"""From records to cells: what counts as a time, what is judged, and what a cell may end as."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_records import GRADIENTS, OUTPUT, failed, job, mode, record, runs

from app.bench.cells import Runs, make_cells
from app.bench.golden import Golden, Gradient, sample
from app.bench.protocol import FULL
from app.bench.record import Mode, Phase, PhaseRecord

GOLDEN = Golden(OUTPUT.shape, float(np.linalg.norm(OUTPUT)), sample(OUTPUT), 0.25, GRADIENTS, {})


def test_medians_of_all_processes_side_by_side(tmp_path: Path) -> None:
    engine = runs(tmp_path, record("engine", mode("plan", 1, 2)), record("engine", mode("plan", 9)))
    torch = runs(tmp_path, record("torch", mode("eager", 8.0), mode("cuda graph", 4.0, 4.0)))
    cells = make_cells(engine, torch, None)
    assert [cell.phase for cell in cells] == list(Phase)
    for cell in cells:
        assert cell.gate == "ok" and cell.engine is not None and cell.reference is not None
        assert cell.engine.samples_ms == (1, 2, 9) and cell.engine.median == 2
        assert (cell.reference.mode, cell.ratio) == ("cuda graph", 0.5)


def test_a_mode_that_computes_something_else_does_not_count(tmp_path: Path) -> None:
    engine = runs(tmp_path, record("engine", mode("plan", 1)))
    for deviation in (0.5, float("nan")):
        modes = mode("eager", 8.0), mode("torch.compile", 4.0, deviation=deviation)
        (cell, *_) = make_cells(engine, runs(tmp_path, record("torch", *modes)), None)
        assert cell.reference is not None and cell.reference.mode == "eager"


def test_wrong_results_fail(tmp_path: Path) -> None:
    engine = runs(tmp_path, record("engine", mode("plan", 1)), output=1.01 * OUTPUT)
    torch = runs(tmp_path, record("torch", mode("eager", 1)))
    gates = [cell.gate for cell in make_cells(engine, torch, None)]
    assert gates == ["fails gate", "fails gate", "ok"]
    gates = [cell.gate for cell in make_cells(engine, None, GOLDEN)]
    assert gates == ["fails gate", "fails gate", "ok"]

    other = record("engine", mode("plan", 1))
    gradients = GRADIENTS | {"b": Gradient(0.1, 0.02)}
    phases = (*other.phases[:2], replace(other.phases[2], gradients=gradients))
    engine = runs(tmp_path, replace(other, phases=phases))
    for reference, golden in ((torch, None), (None, GOLDEN), (torch, GOLDEN)):
        cell = make_cells(engine, reference, golden)[2]
        assert cell.gate == "fails gate" and cell.why.startswith("probe of b")
        assert all(finding.good for finding in cell.paper)


def test_rounded_weights_are_judged_for_inference_only(tmp_path: Path) -> None:
    def found(runner: str, output: np.ndarray) -> Runs:
        made = record(runner, mode("plan", 1))
        rounded = replace(made.job, storage="f16")
        return runs(tmp_path, replace(made, job=rounded, phases=made.phases[:2]), output=output)

    for factor, gate in ((1.009, "ok"), (1.011, "fails gate")):
        engine, torch = found("engine", factor * OUTPUT), found("torch", OUTPUT)
        cells = make_cells(engine, torch, GOLDEN)
        assert [cell.phase for cell in cells] == [Phase.INFERENCE, Phase.MINIMAL]
        assert {cell.gate for cell in cells} == {gate}
    assert engine.first.compile_s() == 1.0


def test_results_that_cannot_be_compared_fail(tmp_path: Path) -> None:
    engine = runs(tmp_path, record("engine", mode("plan", 1)), output=OUTPUT[:, 1:])
    torch = runs(tmp_path, record("torch", mode("eager", 1)))
    cell = make_cells(engine, torch, None)[0]
    assert (cell.gate, cell.why) == ("fails gate", "output is (1, 299), not (1, 300)")


def test_what_was_not_run_is_skipped_with_a_reason(tmp_path: Path) -> None:
    engine = runs(tmp_path, record("engine", mode("plan", 1)))
    absent = runs(tmp_path, failed("torch", "skipped: not installed"))
    for cell in make_cells(engine, absent, None):
        assert cell.gate == "skipped(torch: skipped: not installed)"
        assert cell.engine is not None and cell.ratio is None
    for cell in make_cells(engine, None, None):
        assert cell.gate == "skipped(no reference was asked for)"
    # Reference files can stand in for a runner.
    assert {cell.gate for cell in make_cells(engine, absent, GOLDEN)} == {"ok"}

    torch = runs(tmp_path, record("torch", mode("eager", 1)))
    broken = runs(tmp_path, failed("engine", "error: the device was lost"))
    for cell in make_cells(broken, torch, GOLDEN):
        assert cell.gate == "skipped(engine: error: the device was lost)"
        assert cell.engine is None and cell.reference is not None


def test_one_phase_may_fail_alone(tmp_path: Path) -> None:
    whole = record("engine", mode("plan", 1))
    lost = PhaseRecord(Phase.TRAINING, (Mode("plan", fault="out of memory"),))
    engine = runs(tmp_path, replace(whole, phases=(*whole.phases[:2], lost)))
    torch = runs(tmp_path, record("torch", mode("eager", 1)))
    gates = [cell.gate for cell in make_cells(engine, torch, None)]
    assert gates == ["ok", "ok", "skipped(plan: out of memory)"]


@pytest.mark.parametrize(("workload", "judged"), [("smolvla", False), ("unet", True)])
def test_reference_files_judge_the_minimal_shape_where_it_is_the_same(
    workload: str, judged: bool, tmp_path: Path
) -> None:
    full = replace(job(workload), reduced=False, protocol=FULL)
    made = replace(record("engine", mode("plan", 1), workload=workload), job=full)
    cells = make_cells(runs(tmp_path, made), None, GOLDEN)
    assert [cell.gate == "ok" for cell in cells] == [True, judged, True]
