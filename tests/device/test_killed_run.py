"""Killed at any moment, or out of disk space: what a session leaves can be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.telemetry.folder import RunFolder, open_folder
from app.telemetry.recorder import TelemetryError
from assets import photos_dir
from tests.command_line import ROOT
from tests.recording_program import SECONDS

PATIENCE_S = 180
MOMENTS = 17
STILL = sorted((photos_dir() / "val").iterdir())[0]


def preview(out: Path, *arguments: object) -> list[str]:
    options = ["--headless", "--eye-size", "48", "--held-out", "0", "--camera", str(STILL)]
    options += ["--out", str(out), *map(str, arguments)]
    return [sys.executable, "run.py", "preview", *options]


def report(folder: Path) -> str:
    """What `report` prints of a folder; it must succeed."""
    told = subprocess.run(
        [sys.executable, "run.py", "report", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert told.returncode == 0 and "Traceback" not in told.stderr, told.stderr
    assert (folder / "report.html").exists()
    return told.stdout


def rows_of(folder: RunFolder) -> tuple[int, int]:
    """Whole frames and chunks in the records, checked to be the first ones without a gap."""
    frames = [row.id for row in folder.frames()]
    chunks = [row.id for row in folder.chunks()]
    assert frames == list(range(1, len(frames) + 1))
    assert chunks == list(range(1, len(chunks) + 1))
    return len(frames), len(chunks)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_recording_killed_at_random_moments(tmp_path: Path, rng: np.random.Generator) -> None:
    # A few in the milliseconds in which the folder is made, some around the last writes.
    early = rng.uniform(0.0, 0.02, 5)
    late = SECONDS + rng.uniform(0.0, 0.08, 4)
    moments = [*early, *rng.uniform(0.02, SECONDS, MOMENTS - 9), *late]
    out = tmp_path / "out"
    subprocess.run(
        [sys.executable, "-m", "tests.recording_program", str(out), *map(str, moments)],
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=True,
    )
    found = []
    for index, moment in enumerate(moments):
        folder = out / str(index)
        if not (folder / "run.json").exists():
            assert moment < 0.1  # killed before the record was begun
            assert {path.name[:10] for path in folder.glob("*")} <= {".run.json."}
            continue
        run = open_folder(folder)
        assert isinstance(run, RunFolder) and run.hz == 500
        frames, chunks = rows_of(run)
        found.append(frames)
        if run.outcome == "ok":
            assert moment > SECONDS and run.summary == {"outcome": "ok", "frames": 500}
            assert (frames, chunks) == (500, 500)
        else:
            assert run.outcome == "incomplete" and run.run["finished"] is None
    assert len(found) >= MOMENTS - len(early) and max(found) > 0
    first = next(out / str(n) for n in range(MOMENTS) if (out / str(n) / "run.json").exists())
    assert "incomplete" in report(first) + (first / "report.html").read_text()


@pytest.mark.gpu
@pytest.mark.parametrize("moment", ["while compiling", "at the first record", "while running"])
def test_a_session_killed(moment: str, tmp_path: Path, rng: np.random.Generator) -> None:
    out = tmp_path / "out"
    reached: Callable[[], bool] = {
        "while compiling": lambda: True,
        "at the first record": (out / "run.json").exists,
        "while running": lambda: (
            (out / "chunks.jsonl").exists() and (out / "chunks.jsonl").stat().st_size > 0
        ),
    }[moment]
    process = subprocess.Popen(
        preview(out, "--seconds", 600, "--chunks", 16), cwd=ROOT, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not reached():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0.0, 1.0)))
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    if moment == "while compiling":
        assert not out.exists()
        with pytest.raises(TelemetryError, match="is no folder"):
            open_folder(out)
        return
    run = open_folder(out)
    assert isinstance(run, RunFolder)
    assert run.outcome == "incomplete" and run.summary is None
    assert run.options["chunks"] == 16 and run.adapter != "unknown adapter"
    frames, chunks = rows_of(run)
    assert moment == "at the first record" or (frames > 0 and chunks > 0)
    assert "incomplete" in report(out) + (out / "report.html").read_text()


@pytest.mark.gpu
@pytest.mark.parametrize("room", [30_000, 3_000])
def test_a_full_disk_stops_the_recording_and_not_the_frames(room: int, tmp_path: Path) -> None:
    """No file may grow beyond `room` bytes: rows and video do, then also the screenshot."""
    resource = pytest.importorskip("resource")
    out = tmp_path / "out"
    result = subprocess.run(
        preview(out, "--job", "none", "--frames", 150, "--hz", 60),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert result.returncode == 0, result.stderr
    complaint = f"recording to {out} stopped"
    printed = " ".join(result.stderr.split()).replace(f"{out.parent} /", f"{out.parent}/")
    assert printed.count("stopped") == 1 and "WARNING" in printed, result.stderr
    assert "Traceback" not in printed and printed.count("WARN") == 1
    assert "150 frames" in printed

    run = open_folder(out)
    assert isinstance(run, RunFolder) and run.outcome == "ok"
    assert run.run["warning"].startswith(complaint)
    assert (out / "frames.jsonl").stat().st_size <= room
    frames, _ = rows_of(run)
    assert 0 < frames < 150 and run.run["rows_lost"] >= 150 - frames
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["frames"], summary["objects_created_in_loop"]) == (150, 0)
    assert (out / "screenshot.png").exists() == (room == 30_000)
    assert not list(out.glob(".*.tmp"))
