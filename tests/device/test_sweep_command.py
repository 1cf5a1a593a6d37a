"""Whole sweeps, run and reported as a user does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.telemetry.folder import SweepFolder, open_folder
from tests.command_line import ROOT, error_line

pytestmark = pytest.mark.gpu

PATIENCE_S = 240
SMALL = "--in-flight 1 --warm-up 0.2 --eye-size 64".split()
ARM_KEYS = """chunks in_flight policy job hz missed_per_1000 frame_p99_ms train_steps_per_s
    worker_ms isolated_worker_ms ci95""".split()


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "run.py", name, *map(str, arguments)]


def run(name: str, *arguments: object, status: int = 0) -> str:
    """Run a command to its end; what it printed to stderr."""
    result = subprocess.run(
        command(name, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def opened(out: Path) -> SweepFolder:
    folder = open_folder(out)
    assert isinstance(folder, SweepFolder)
    return folder


def check_runs(folder: SweepFolder, finished: list[str]) -> None:
    """Every run that is named can be read, and tells what it was."""
    for name in finished:
        record = folder.run(f"arms/{name}")
        assert record.outcome == "ok" and record.summary is not None
        frames, chunks = list(record.frames()), list(record.chunks())
        assert record.summary["frames"] == len(frames)
        assert record.summary["objects_created_in_loop"] == 0
        assert (record.options["job"] == "none") <= (not chunks)
        assert (record.options["kind"] == "worker") <= all(f.submit_ns is None for f in frames)
        for chunk in chunks:
            assert chunk.of == record.options["chunks"]


def test_a_sweep_and_its_report(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    printed = run("sweep", "--chunks", "1,2", "--seconds", 1, "--repeats", 1, "--out", out, *SMALL)
    assert f"ok: figures in {out}" in printed
    folder = opened(out)
    assert folder.outcome == folder.sweep["outcome"] == "ok"
    order = [name for name, _ in folder.sweep["order"]]
    assert sorted(order) == [
        "both-k1-n1-fixed-90hz",
        "both-k2-n1-fixed-90hz",
        "render-90hz",
        "untraced-both-k2-n1-fixed-90hz",
        "worker-both-k1-n1",
        "worker-both-k2-n1",
    ]
    recorded = [f"{name}-r1" for name in order if not name.startswith("untraced")]
    assert sorted(path.name for path in (out / "arms").iterdir()) == sorted(recorded)
    check_runs(folder, recorded)
    arms = folder.summary["arms"]
    assert [(arm["chunks"], arm["in_flight"], arm["job"]) for arm in arms] == [
        (1, 1, "both"),
        (2, 1, "both"),
    ]
    for arm in arms:
        assert not set(ARM_KEYS) - arm.keys()
        assert arm["folders"] == [f"arms/{arm['name']}-r1"]
        assert arm["frames"] == len(list(folder.run(arm["folders"][0]).frames()))
    (render,) = folder.summary["baselines"]["solo_render"]
    assert render["frames"] > 0 and render["frame_p50_ms"] > 0

    first = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    told = subprocess.run(
        command("report", out), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "fixed" in told.stdout and "written: " in told.stdout
    page = (out / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "<svg" in page and 'src="http' not in page
    assert {path: path.read_bytes() for path in first} == first


def test_ctrl_c_leaves_what_was_finished(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    options = ("--chunks", "1,2,3", "--seconds", 0.5, "--repeats", 50, "--out", out)
    process = subprocess.Popen(
        command("sweep", *options, *SMALL), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE_S

    def finished() -> list[str]:
        """Runs that have come to their end."""
        return [path.parent.name for path in out.glob("arms/*/summary.json")]

    while len(finished()) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    assert json.loads((out / "sweep.json").read_text())["outcome"] == "incomplete"
    os.kill(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, printed
    assert "interrupted: figures in" in printed and "Traceback" not in printed
    folder = opened(out)
    assert folder.outcome == folder.sweep["outcome"] == "interrupted"
    done = [
        f"{name}-r{repeat}"
        for name, repeat in folder.sweep["order"]
        if (out / "arms" / f"{name}-r{repeat}" / "summary.json").exists()
    ]
    check_runs(folder, done[:2])
    assert "interrupted" in run("report", out) + (out / "report.html").read_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    printed = run("sweep", "--chunks", "1", "--seconds", 1, "--out", file, *SMALL, status=1)
    assert f"cannot write to {file}" in error_line(printed)
    assert file.read_text() == "kept"
