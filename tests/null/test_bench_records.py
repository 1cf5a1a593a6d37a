"""Records on disk, and processes that leave none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import job, mode, profiled, record

from app.bench.processes import Caches, known, run_job, scratch
from app.bench.record import Phase, load_job, load_record, save


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    whole = profiled(record("engine", mode("plan", 1.5, 2.5), mode("other", 3.0, deviation=0.1)))
    save(path, whole)
    assert load_record(path) == whole
    save(path, job())
    assert load_job(path) == job()


def test_a_loss_that_is_not_a_number_comes_back(tmp_path: Path) -> None:
    whole = record("engine", mode("plan", 1))
    phases = tuple(replace(phase, loss=math.nan) for phase in whole.phases)
    save(tmp_path / "record.json", replace(whole, phases=phases))
    loss = load_record(tmp_path / "record.json").phases[0].loss
    assert loss is not None and math.isnan(loss)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"runner": 3}'])
def test_a_damaged_record_is_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"record\.json is no RunRecord") as error:
        load_record(path)
    assert "\n" not in str(error.value)


def test_compile_seconds_are_of_all_three_sessions_or_none() -> None:
    whole = record("torch", mode("eager", 1), mode("torch.compile", 1))
    assert whole.compile_s() == whole.compile_s("torch.compile") == 1.5
    assert whole.first_runs_s() == pytest.approx(0.3)
    assert whole.compile_s("cuda graph") is None
    assert replace(whole, phases=whole.phases[:2]).compile_s() is None
    assert replace(whole, phases=whole.phases[:2]).phase(Phase.TRAINING) is None


def test_processes_that_fail_give_a_record_that_says_how(tmp_path: Path) -> None:
    caches = Caches(tmp_path / "caches")
    found = run_job("nothing", job(), caches, tmp_path / "a")
    assert found.outcome.startswith("error: ") and "runner_nothing" in found.outcome
    assert (found.runner, found.workload, found.phases) == ("nothing", "smolvla", ())
    found = run_job("engine", job(), caches, tmp_path / "b", limit_s=0.01)
    assert found.outcome == "error: no end within 0 s"


def test_runners_are_known_by_their_files() -> None:
    assert known("torch") and known("engine")
    assert not known("jax") and not known("torch.x") and not known("")


def test_caches_begin_empty_and_go_away() -> None:
    with scratch() as folder:
        caches = Caches(folder / "caches")
        assert not any(caches.plans.iterdir())
        for place in caches.environment.values():
            assert Path(place).is_relative_to(folder) and not any(Path(place).iterdir())
        assert caches.environment
        assert not Caches(folder / "others", plans_only=True).environment
    assert not folder.exists()
