"""Whole preview sessions, run as a user runs them, without a window."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from app.pixels import psnr_db
from app.preview.viewers import VIDEO_SIZE
from assets import photos_dir
from engine.checkpoint import load_checkpoint
from tests.command_line import ROOT

pytestmark = pytest.mark.gpu

CONTRACT = """outcome frames frame_ms missed_per_1000 longest_stale_run chunks in_flight policy
    train_steps train_steps_per_s train_ms infer_ms eye_ms gpu_share causes clock_error_us
    loss_first loss_last psnr_first_db psnr_last_db adapter gpu objects_created_in_loop""".split()
FILES = {"screenshot.png", "preview.mp4", "frames.jsonl", "chunks.jsonl", "run.json"}
FILES |= {"quality.jsonl", "trace.pftrace"}
FIXED = ("--policy", "fixed", "--no-rehearse")
EYE = 100  # not a multiple of what row pitches are aligned to
PATIENCE_S = 180


STILL = sorted((photos_dir() / "val").iterdir())[0]
"""The camera shows the first held-out photograph, so that losses of two sessions compare."""


def command(out: Path, *arguments: object) -> list[str]:
    small = ["--headless", "--eye-size", str(EYE), "--hz", "30", "--out", str(out)]
    small += ["--camera", str(STILL), "--encoder", "random"]
    return [sys.executable, "run.py", "preview", *small, *map(str, arguments)]


class Records:
    """What a session has left in its folder, checked for consistency."""

    def __init__(self, out: Path) -> None:
        self.out = out
        assert {path.name for path in out.iterdir()} == FILES | {"summary.json"}
        self.run = self.load("run.json")
        self.summary = self.load("summary.json")
        self.frames, self.chunks = self.rows("frames.jsonl"), self.rows("chunks.jsonl")
        self.quality = self.rows("quality.jsonl")

    def load(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.out / name).read_text())
        return value

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / name).read_text().splitlines()]

    def check(self, outcome: str, chunks: int, in_flight: int) -> None:
        assert self.run["outcome"] == self.summary["outcome"] == outcome
        assert self.run["warning"] is None and self.run["rows_lost"] == 0
        assert self.run["config"]["options"]["chunks"] == chunks
        assert not set(CONTRACT) - self.summary.keys()
        assert self.summary["chunks"] == chunks and self.summary["in_flight"] == in_flight
        assert self.summary["objects_created_in_loop"] == 0
        self.check_frames()
        self.check_chunks(chunks, in_flight)
        self.check_pictures()

    def check_frames(self) -> None:
        frames = self.frames
        assert [row["id"] for row in frames] == list(range(1, len(frames) + 1))
        assert self.summary["frames"] == len(frames) > 0
        for row in frames:
            stamps = [row[f"{name}_ns"] for name in ("wait", "begin", "locate", "submit", "end")]
            assert stamps == sorted(stamps)
            assert row["gpu_done_ns"] > row["submit_ns"]
            # What the first one shows was uploaded before the session.
            assert row["id"] == 1 or row["camera_age_ms"] >= 0
            self.check_stamps(row)
        known = sorted(row["frame_ms"] for row in frames)
        assert self.summary["frame_ms"]["max"] == round(known[-1], 3)
        assert known[0] <= self.summary["frame_ms"]["p50"] <= known[-1]
        shown = [row["stale_run"] for row in frames if row["displayed_ns"] is not None]
        assert self.summary["vsyncs"] == len(shown) + sum(shown)
        assert self.summary["longest_stale_run"] == max(shown, default=0)

    def check_stamps(self, row: dict[str, Any]) -> None:
        """GPU stamps lie where the CPU saw the work, as far as the clocks are known."""
        begin, end = row["eye_begin_ns"], row["eye_end_ns"]
        clock = self.run["clock"]
        assert (begin is None) == (end is None) and (begin is None) <= (clock is None)
        if begin is not None:
            off_ns = 1e3 * (clock["error_us"] + 100)
            assert row["submit_ns"] - off_ns < begin <= end < row["gpu_done_ns"] + off_ns
            assert row["eye_ms"] == (end - begin) / 1e6

    def check_chunks(self, chunks: int, in_flight: int) -> None:
        rows = self.chunks
        assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))
        assert self.summary["chunks_submitted"] == len(rows) > 0
        assert {row["of"] for row in rows} == {chunks}
        assert max(row["in_flight"] for row in rows) <= in_flight
        assert rows[-1]["index"] == chunks - 1  # the run under way was finished
        frame_ids = [row["frame_id"] for row in rows]
        assert frame_ids == sorted(frame_ids)
        by_frame = {row["id"]: row["chunks_run"] for row in self.frames if row["chunks_run"]}
        assert Counter(frame_ids) == by_frame
        for before, after in pairwise(rows):
            assert before["submit_ns"] < before["done_ns"] <= after["done_ns"]
            if before["index"] < chunks - 1:
                same = ("job", "job_id")
                assert [before[k] for k in same] == [after[k] for k in same]
            assert after["index"] == (before["index"] + 1) % chunks
        ended = Counter(row["job"] for row in rows if row["index"] == chunks - 1)
        assert self.summary["train_steps"] == ended["train"]
        assert self.summary["inferences"] == ended["infer"]
        for job in ("train", "infer"):
            ids = [row["job_id"] for row in rows if row["job"] == job]
            assert ids == sorted(ids) and set(ids) == set(range(1, len(set(ids)) + 1))

    def check_pictures(self) -> None:
        picture = cv2.imread(str(self.out / "screenshot.png"))
        assert picture is not None and picture.shape == (EYE, 2 * EYE, 3)
        assert picture.std() > 10
        video = cv2.VideoCapture(str(self.out / "preview.mp4"))
        count = 0
        while True:
            ok, image = video.read()
            if not ok:
                break
            count += 1
            assert image.shape == (VIDEO_SIZE[1], VIDEO_SIZE[0], 3)
            assert np.asarray(image).std() > 10
        video.release()
        assert count > 0


def session(out: Path, *arguments: object) -> tuple[Records, str]:
    """Run a session that must end well; its records and what it printed."""
    result = subprocess.run(
        command(out, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    return Records(out), result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("preview")


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Records, str]:
    """Training and inference, 3 chunks each, 2 in flight; saved at the end."""
    save = folder / "decoder.safetensors"
    arguments = ("--chunks", 3, "--in-flight", 2, *FIXED)
    arguments += ("--fresh", "--held-out", 1, "--save", save)
    return session(folder / "both", "--seconds", 9, *arguments)


def test_records_agree_with_each_other(both: tuple[Records, str]) -> None:
    records, printed = both
    records.check("ok", chunks=3, in_flight=2)
    summary = records.summary
    assert summary["policy"] == "fixed" and summary["job"] == "both"
    assert summary["train_steps"] >= 2 and summary["inferences"] >= 2
    assert summary["infer_ms"]["p50"] > 0 and summary["train_steps_per_s"] > 0
    assert summary["train_ms"]["p50"] > 0 and set(summary["causes"]) == {"chunk", "start", "render"}
    shares = summary["gpu_share"]
    assert set(shares) == {"render", "train", "infer"}
    assert all(share > 0 for share in shares.values()) and sum(shares.values()) < 1.05
    assert {row["frame_id"] for row in records.chunks} > {1}
    assert max(row["in_flight"] for row in records.chunks) == 2
    last = printed.splitlines()[-2:]
    assert last[0].startswith(f"ok: {summary['frames']} frames, ")
    assert last[1] == f"records in {records.out}"


def test_learning_shows_in_the_summary(both: tuple[Records, str]) -> None:
    summary = both[0].summary
    assert 0 < summary["loss_last"] < summary["loss_first"] < 0.5
    assert 3 < summary["psnr_first_db"] < summary["psnr_last_db"] < 40
    assert psnr_db(summary["loss_first"]) == pytest.approx(summary["psnr_first_db"], abs=0.05)
    first, *beside, last = both[0].quality
    assert first["photo"] is last["photo"] is None and {row["photo"] for row in beside} <= {0}
    steps = [row["step"] for row in (first, *beside)]
    assert steps == sorted(set(steps)), "a photograph is not painted anew with the same weights"
    assert all(row["held_out_db"] > first["held_out_db"] for row in (*beside, last))
    for row, db in zip((first, last), summary["held_out_db"], strict=True):
        assert db == round(row["held_out_db"], 3)


def test_a_checkpoint_is_resumed(both: tuple[Records, str], folder: Path) -> None:
    first = both[0].summary
    steps = first["train_steps"]
    file = load_checkpoint(folder / "decoder.safetensors")
    assert file.metadata["step"] == str(steps)
    moments = [name for name in file.tensors if name.startswith("adam_m.")]
    assert moments and any(file.tensors[name].any() for name in moments)

    again = folder / "again.safetensors"
    resumed = ("--checkpoint", folder / "decoder.safetensors", "--save", again)
    records, _ = session(
        folder / "resumed", "--job", "train", "--frames", 12, "--held-out", 1, *FIXED, *resumed
    )
    records.check("ok", chunks=4, in_flight=1)
    summary = records.summary
    assert {row["job"] for row in records.chunks} == {"train"}
    assert summary["infer_ms"] == {"p50": None, "p95": None}
    assert summary["train_ms"]["p50"] > 0
    # It goes on where the other stopped: the same weights, the next step.
    assert summary["psnr_first_db"] == first["psnr_last_db"]
    assert psnr_db(summary["loss_first"]) == pytest.approx(first["psnr_last_db"], abs=0.05)
    assert summary["psnr_first_db"] < summary["psnr_last_db"]
    assert load_checkpoint(again).metadata["step"] == str(steps + summary["train_steps"])
    assert summary["train_steps"] >= 2


def test_inference_alone_learns_nothing(folder: Path) -> None:
    arguments = ("--job", "infer", "--frames", 8, "--chunks", 2, "--policy", "greedy")
    records, printed = session(folder / "infer", "--held-out", 0, *arguments)
    records.check("ok", chunks=2, in_flight=1)
    summary = records.summary
    assert summary["frames"] == 8
    assert {row["job"] for row in records.chunks} == {"infer"}
    assert {row["reason"] for row in records.chunks} - {"end of session"} == {"room in flight"}
    assert summary["train_steps"] == 0
    for name in ("loss_first", "loss_last", "psnr_first_db", "psnr_last_db"):
        assert summary[name] is None
    assert "dB" not in printed


def test_ctrl_c_ends_the_session_in_good_order(folder: Path) -> None:
    out = folder / "interrupted"
    process = subprocess.Popen(
        command(out, "--seconds", 3600, "--held-out", 1, "--chunks", 5, *FIXED),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    rows = out / "chunks.jsonl"
    while not (rows.exists() and rows.read_text().count("\n") > 6):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    assert json.loads((out / "run.json").read_text())["outcome"] == "incomplete"
    os.kill(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, printed
    assert "interrupted: " in printed and "Traceback" not in printed
    records = Records(out)
    records.check("interrupted", chunks=5, in_flight=1)
