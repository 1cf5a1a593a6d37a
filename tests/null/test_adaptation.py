"""Held-out figures of a session, and the settings that hold where none are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config import LiveConfig, PreviewConfig
from app.report.page import Plot
from app.report.run import run_page
from app.telemetry.adaptation import Adaptation
from app.telemetry.csv_export import write_csv
from app.telemetry.folder import open_run
from app.telemetry.recorder import Recorder
from app.telemetry.rows import QualityRow, row_line
from tests.run_folders import RunModel


def row(seconds: float, db: float | None, camera_db: float | None = None) -> QualityRow:
    return QualityRow(
        measured_ns=10**12 + round(1e9 * seconds),
        step=round(100 * seconds),
        photo=None if seconds == 0 else 3,
        photo_db=db,
        held_out_db=db,
        camera_db=camera_db,
    )


ROWS = [row(0, 20.5), row(1, 19.2), row(2, None), row(3, 22.1, 30.0), row(4, 21.0), row(5, 23.99)]


def test_marks_are_passed_once_and_only_above_the_start() -> None:
    adaptation = Adaptation()
    assert adaptation.to_dict()["held_out_db"] == [None, None]
    for figure in ROWS:
        adaptation.add(figure)
    assert adaptation.passed_s == {21: 3.0, 22: 3.0, 23: 5.0}
    assert adaptation.to_dict() == {
        "held_out_db": [20.5, 23.99],
        "held_out_lowest_db": 19.2,
        "held_out_passed_s": {"21": 3.0, "22": 3.0, "23": 5.0},
        "camera_db": 30.0,
    }


def test_figures_are_read_back_as_they_were_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, {})
    for figure in ROWS:
        recorder.quality(figure)
    recorder.finish("ok", {})
    assert recorder.statistics.adaptation.last_db == 23.99
    folder = open_run(tmp_path)
    assert list(folder.quality()) == ROWS
    assert [path.name for path in write_csv(folder)][2:] == ["quality.csv"]
    (tmp_path / "quality.jsonl").unlink()  # as of older runs
    assert list(folder.quality()) == [] and len(write_csv(folder)) == 2


def test_the_report_draws_what_was_learnt(tmp_path: Path) -> None:
    path = RunModel(frames=10).write(tmp_path / "run")
    assert not any(
        isinstance(p, Plot) and "learnt" in p.title for p in run_page(open_run(path)).parts
    )
    (path / "quality.jsonl").write_text("".join(map(row_line, ROWS)))
    (plot,) = (p for p in run_page(open_run(path)).parts if "learnt" in p.title)
    assert isinstance(plot, Plot) and "20.50 dB before, 23.99 dB at last" in plot.note
    for label in ("camera image", "held-out photographs", "before", "PSNR, dB"):
        assert label in plot.svg


@pytest.mark.parametrize(
    ("config", "cpu", "gpu"),
    [
        (PreviewConfig(), ("fixed", 1), ("deadline", 8)),
        (PreviewConfig(policy="deadline"), ("deadline", 1), ("deadline", 8)),
        (PreviewConfig(policy="fixed"), ("fixed", 1), ("fixed", 1)),
        (PreviewConfig(in_flight=3), ("fixed", 3), ("deadline", 3)),
        (PreviewConfig(policy="greedy", in_flight=2), ("greedy", 2), ("greedy", 2)),
    ],
)
def test_scheduling_suits_the_device(
    config: LiveConfig, cpu: tuple[str, int], gpu: tuple[str, int]
) -> None:
    assert config.scheduling(is_cpu=True) == cpu
    assert config.scheduling(is_cpu=False) == gpu
