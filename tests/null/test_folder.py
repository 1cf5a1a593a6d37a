"""Run and sweep folders are read back whole, torn, old or damaged."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from app.telemetry.csv_export import write_csv
from app.telemetry.folder import RunFolder, open_folder, open_run
from app.telemetry.recorder import Recorder, TelemetryError
from tests.run_folders import RunModel


@pytest.fixture
def model() -> RunModel:
    return RunModel(frames=50)


@pytest.fixture
def path(model: RunModel, tmp_path: Path) -> Path:
    return model.write(tmp_path / "run")


def test_rows_come_back_as_they_were(model: RunModel, path: Path) -> None:
    folder = open_folder(path)
    assert isinstance(folder, RunFolder)
    assert list(folder.frames()) == model.frame_rows
    assert list(folder.chunks()) == model.chunk_rows
    assert folder.outcome == "ok" and folder.hz == 90 and folder.options["chunks"] == 4
    assert folder.clock["error_us"] == 12.5 and folder.summary is not None


def test_what_a_recorder_wrote(model: RunModel, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", {"options": {"hz": 72.0}})
    recorder.frame(model.frame_rows[0])
    recorder.chunk(model.chunk_rows[0])
    recorder.finish("interrupted", {})
    folder = open_run(tmp_path / "run")
    assert [*folder.frames(), *folder.chunks()] == [model.frame_rows[0], model.chunk_rows[0]]
    assert folder.outcome == "interrupted" and folder.hz == 72


@pytest.mark.parametrize("left", [1, 20, 200])
def test_a_torn_last_line_is_no_row(model: RunModel, path: Path, left: int) -> None:
    file = path / "frames.jsonl"
    whole = file.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    file.write_bytes(whole[: len(whole) - len(last) + left])
    assert list(open_run(path).frames()) == model.frame_rows[:-1]


def test_a_killed_run(model: RunModel, tmp_path: Path) -> None:
    path = model.write(tmp_path / "killed", outcome="incomplete")
    folder = open_run(path)
    assert folder.outcome == "incomplete" and folder.summary is None
    os.remove(path / "frames.jsonl")  # killed before the first flush
    assert list(folder.frames()) == []


def test_rows_of_an_old_run(path: Path) -> None:
    file = path / "frames.jsonl"
    file.write_text('{"id": 1, "predicted_display_ns": 9, "wait_ns": 5, "unheard_of": 1}\n')
    (row,) = open_run(path).frames()
    assert (row.id, row.due_ns, row.cause, row.eye_ms) == (1, 9, "", None)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("nonsense", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"id": 1}', "predicted_display_ns is None"),
        ('{"id": "x", "predicted_display_ns": 9, "wait_ns": 5}', "id is 'x'"),
        ('{"id": 1, "predicted_display_ns": 9, "wait_ns": -5}', "wait_ns is -5"),
        ('{"id": 1, "predicted_display_ns": 9, "wait_ns": 1e3}', "wait_ns is 1000.0"),
        ('{"id": 1, "predicted_display_ns": 9, "wait_ns": 5, "cause": "fate"}', "cause is 'fate'"),
        ('{"id": 1, "predicted_display_ns": 9, "wait_ns": 5, "eye_ms": NaN}', "eye_ms is nan"),
    ],
)
def test_a_damaged_row_is_named(path: Path, line: str, named: str) -> None:
    file = path / "frames.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = line
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(TelemetryError, match=r"line 3 of .*frames\.jsonl is damaged") as error:
        list(open_run(path).frames())
    assert named in str(error.value)


def test_a_file_without_lines_is_damaged(path: Path) -> None:
    (path / "chunks.jsonl").write_bytes(b"x" * (3 << 20))
    with pytest.raises(TelemetryError, match=r"line 1 of .* is damaged"):
        list(open_run(path).chunks())


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "has no run.json"),
        ({"run.json": "{"}, "run.json is damaged"),
        ({"run.json": "[]"}, "run.json is damaged"),
        ({"run.json": "{}", "summary.json": "1"}, "summary.json is damaged"),
        ({"sweep.json": "{}"}, "was killed before its summary"),
        ({"sweep.json": "?", "summary.json": "{}"}, "sweep.json is damaged"),
    ],
)
def test_what_is_no_folder(tmp_path: Path, files: dict[str, str], named: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TelemetryError, match=named):
        open_folder(tmp_path)


def test_no_folder_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        with pytest.raises(TelemetryError, match="is no folder"):
            open_folder(tmp_path / name)


def test_odd_run_json_has_no_options(path: Path) -> None:
    (path / "run.json").write_text(json.dumps({"config": [], "clock": 3}))
    folder = open_run(path)
    assert (folder.outcome, folder.options, folder.clock) == ("incomplete", {}, {})
    assert folder.adapter == "unknown adapter" and folder.hz == 90  # of the summary


def test_csv_holds_every_field(model: RunModel, path: Path) -> None:
    frames, chunks = write_csv(open_run(path))
    with open(frames, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(model.frame_rows)
    for text, row in zip(rows, model.frame_rows, strict=True):
        assert list(text) == list(type(row).__dataclass_fields__)
        assert int(text["wait_ns"]) == row.wait_ns and float(text["frame_ms"]) == row.frame_ms
        assert text["margin_ms"] == "" and text["cause"] == row.cause
    with open(chunks, newline="") as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == [r.id for r in model.chunk_rows]
    assert not list(path.glob(".*tmp"))


def test_csv_of_a_damaged_run_leaves_no_file(path: Path) -> None:
    file = path / "frames.jsonl"
    file.write_text("x\n" + file.read_text())
    with pytest.raises(TelemetryError):
        write_csv(open_run(path))
    assert not list(path.glob("*.csv")) and not list(path.glob(".*tmp"))
