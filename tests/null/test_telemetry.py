"""Rows, statistics, summary and the run folder; no device, no clock."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import signal
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry import recorder as recorder_module
from app.telemetry.rate import RateMeter, ShareMeter
from app.telemetry.recorder import Recorder, TelemetryError
from app.telemetry.rows import ChunkRow, FrameRow, row_line, to_json
from app.telemetry.statistics import CAUSES, Statistics
from app.telemetry.summary import Summary, percentiles
from engine.atomic import open_atomic, write_atomic
from engine.clock import Calibration, Clock

MS = 1_000_000

CONTRACT_KEYS = """outcome frames frame_ms missed_per_1000 longest_stale_run chunks in_flight policy
    train_steps train_steps_per_s train_ms inferences inferences_per_s infer_ms eye_ms gpu_share
    causes submit_ms seconds vsyncs stale dropped chunks_submitted clock_error_us loss_first
    loss_last psnr_first_db psnr_last_db adapter gpu objects_created_in_loop""".split()


def frame(number: int, **known: Any) -> FrameRow:
    wait_ns = number * 10 * MS
    return FrameRow(
        id=number,
        predicted_display_ns=wait_ns + 11 * MS,
        due_ns=wait_ns + 10 * MS,
        wait_ns=wait_ns,
        **known,
    )


def chunk(number: int, **known: Any) -> ChunkRow:
    defaults: dict[str, Any] = {
        "job": "train", "job_id": number, "index": 0, "of": 1, "dispatches": 7, "frame_id": number,
        "submit_ns": number * 10 * MS, "in_flight": 1, "reason": "frame quota",
    }  # fmt: skip
    return ChunkRow(id=number, **(defaults | known))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def strict_json(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    value: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return value


# -- rows --

maybe_ns = st.none() | st.integers(0, 2**62)
maybe_ms = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        FrameRow,
        id=st.integers(1, 2**40), predicted_display_ns=st.integers(0, 2**62),
        due_ns=st.integers(0, 2**62), wait_ns=st.integers(0, 2**62), begin_ns=maybe_ns,
        locate_ns=maybe_ns, submit_ns=maybe_ns, end_ns=maybe_ns, eye_begin_ns=maybe_ns,
        eye_end_ns=maybe_ns, gpu_done_ns=maybe_ns, frame_ms=maybe_ms, interval_ms=maybe_ms,
        eye_ms=maybe_ms, submit_ms=maybe_ms, slack_ms=maybe_ms,
        missed=st.none() | st.integers(0, 9), stale_run=st.none() | st.integers(0, 9),
        displayed_ns=maybe_ns, chunks_run=st.integers(0, 99), chunk_gpu_ms=maybe_ms,
        in_flight_at_submit=st.none() | st.integers(0, 9),
        behind_chunk=st.none() | st.integers(1, 99),
        cause=st.sampled_from(["", *CAUSES]), withheld=st.text(), margin_ms=maybe_ms,
        presenter_ms=maybe_ms, camera_age_ms=maybe_ms,
    )
)  # fmt: skip
def test_a_frame_row_round_trips_as_one_json_line(row: FrameRow) -> None:
    line = row_line(row)
    assert line.endswith("}\n") and line.count("\n") == 1
    assert FrameRow(**json.loads(line)) == row


@given(st.text(), st.sampled_from(["train", "infer"]), maybe_ns, maybe_ms)
def test_a_chunk_row_round_trips(reason: str, job: str, ns: int | None, ms: float | None) -> None:
    row = chunk(
        3, reason=reason, job=job, done_ns=ns, submit_ms=ms,
        begin_ns=ns, end_ns=ns, gpu_ms=ms, predicted_ms=ms,
    )  # fmt: skip
    line = row_line(row)
    assert line.count("\n") == 1
    assert ChunkRow(**json.loads(line)) == row


def test_a_line_is_strict_json_even_for_nan() -> None:
    row = json.loads(row_line(frame(1, frame_ms=math.nan, slack_ms=-math.inf)))
    assert row["frame_ms"] is None and row["slack_ms"] is None


def test_to_json_takes_what_configurations_hold() -> None:
    @dataclasses.dataclass
    class Options:
        out: Path
        size: tuple[int, int]

    value = {"o": Options(Path("a") / "b", (1, 2)), "n": np.float32(np.nan), "i": np.int64(3)}
    expected = {"o": {"out": str(Path("a") / "b"), "size": [1, 2]}, "n": None, "i": 3}
    assert json.loads(to_json(value)) == expected


# -- statistics and summary --


def test_percentiles() -> None:
    assert percentiles(range(101)) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert percentiles([1.23456]) == {"p50": 1.235, "p95": 1.235, "p99": 1.235, "max": 1.235}
    assert percentiles([math.nan, 2.0, math.inf])["max"] == 2.0
    assert set(percentiles([]).values()) == {None}
    growing = array("d", [1.0])
    percentiles(growing)
    growing.append(2.0)  # an exported buffer would forbid this


def test_statistics_of_frames() -> None:
    statistics = Statistics()
    statistics.add_frame(
        frame(1, frame_ms=4.0, submit_ms=0.5, missed=0, stale_run=0, displayed_ns=1)
    )
    statistics.add_frame(frame(2, missed=2, stale_run=2))  # dropped
    statistics.add_frame(frame(3, frame_ms=8.0, missed=1, stale_run=2, displayed_ns=4))
    statistics.add_frame(frame(4))  # fate unknown: the session ended
    assert (statistics.frames, statistics.dropped) == (4, 1)
    assert (statistics.fresh, statistics.stale, statistics.vsyncs) == (2, 2, 4)
    # No refresh showed the frame drawn for it but the first: two were stale, one was late.
    assert statistics.missed == 3
    assert statistics.missed_per_1000 == 750.0
    assert statistics.longest_stale_run == 2
    assert list(statistics.frame_ms) == [4.0, 8.0]
    assert list(statistics.submit_ms) == [0.5]
    assert statistics.seconds == pytest.approx(0.03)


def test_statistics_of_gpu_times_and_causes() -> None:
    statistics = Statistics()
    for number, eye_ms, cause in ((0, 4.0, "chunk"), (1, None, "start"), (2, 6.0, "chunk")):
        statistics.add_frame(frame(number, eye_ms=eye_ms, cause=cause, presenter_ms=eye_ms))
    statistics.add_frame(frame(4, eye_ms=2.0))
    statistics.add_chunk(chunk(1, gpu_ms=5.0))
    statistics.add_chunk(chunk(2, gpu_ms=None))
    statistics.add_chunk(chunk(3, gpu_ms=3.0))
    statistics.add_chunk(chunk(4, job="infer", gpu_ms=1.0))
    assert list(statistics.eye_ms) == [4.0, 6.0, 2.0]
    assert list(statistics.presenter_ms) == [4.0, 6.0]
    assert statistics.causes == {"chunk": 2, "start": 1}
    shares = statistics.gpu_share()  # of 40 ms
    assert shares == pytest.approx({"render": 0.3, "train": 0.2, "infer": 0.025})
    content = summary(clock_error_us=2.5).to_dict(statistics)
    assert content["causes"] == {"chunk": 2, "start": 1, "render": 0}
    assert content["gpu_share"] == {"render": 0.3, "train": 0.2, "infer": 0.025}
    assert content["eye_ms"] == {"p50": 4.0, "p95": 5.8, "p99": 5.96, "max": 6.0}
    assert content["clock_error_us"] == 2.5


def test_statistics_of_chunks() -> None:
    statistics = Statistics()
    statistics.add_frame(frame(0))
    statistics.add_frame(frame(50))
    statistics.add_chunk(chunk(1, index=0, of=2, done_ns=1))
    statistics.add_chunk(chunk(2, index=1, of=2, done_ns=2))
    statistics.add_chunk(
        chunk(3, job="infer", job_id=1, index=0, of=2, submit_ns=3 * MS, done_ns=4)
    )
    statistics.add_chunk(chunk(4, job="infer", job_id=1, index=1, of=2, done_ns=10 * MS))
    statistics.add_chunk(chunk(5, job="infer", job_id=2, submit_ns=20 * MS, done_ns=25 * MS))
    statistics.add_chunk(chunk(6, done_ns=None))  # never completed: no step
    assert statistics.chunks == 6
    assert statistics.runs == {"train": 1, "infer": 2}
    assert statistics.per_second("train") == pytest.approx(2.0)
    assert list(statistics.run_ms["infer"]) == [7.0, 5.0]
    content = summary().to_dict(statistics)
    assert (content["train_steps"], content["train_steps_per_s"]) == (1, 2.0)
    assert (content["inferences"], content["inferences_per_s"]) == (2, 4.0)
    assert content["infer_ms"] == {"p50": 6.0, "p95": 6.9}


def test_latency_ends_with_the_gpu_not_with_its_observation() -> None:
    statistics = Statistics()
    first = {"job_id": 1, "index": 0, "of": 2, "submit_ns": 10 * MS}
    statistics.add_chunk(chunk(1, **first, end_ns=12 * MS, done_ns=13 * MS))
    statistics.add_chunk(chunk(2, job_id=1, index=1, of=2, end_ns=17 * MS, done_ns=19 * MS))
    # Of the next run the first chunk was not recorded: it counts, but its latency is unknown.
    statistics.add_chunk(chunk(3, job_id=2, index=1, of=2, done_ns=40 * MS))
    assert statistics.runs["train"] == 2
    assert list(statistics.run_ms["train"]) == [7.0]


def summary(**known: Any) -> Summary:
    defaults: dict[str, Any] = {
        "outcome": "ok", "chunks": 4, "in_flight": 1, "policy": "fixed", "adapter": "a",
        "gpu": "wgpu", "objects_created_in_loop": 0,
    }  # fmt: skip
    return Summary(**(defaults | known))


def test_an_empty_session_has_exactly_the_contracts_keys() -> None:
    content = summary().to_dict(Statistics())
    assert list(content) == CONTRACT_KEYS
    assert content["frame_ms"] == {"p50": None, "p95": None, "p99": None, "max": None}
    assert content["infer_ms"] == content["train_ms"] == {"p50": None, "p95": None}
    assert content["gpu_share"] == {"render": 0.0, "train": 0.0, "infer": 0.0}
    assert content["causes"] == {"chunk": 0, "start": 0, "render": 0}
    assert content["missed_per_1000"] == 0.0 and content["train_steps_per_s"] == 0.0


def test_extra_keys_follow_and_never_replace_the_contracts() -> None:
    content = summary().to_dict(Statistics(), {"hz": 90.0, "frames": "no"})
    assert list(content) == [*CONTRACT_KEYS, "hz"]
    assert content["frames"] == 0


# -- rate --


def test_rate_over_a_sliding_window() -> None:
    meter = RateMeter(window_s=1.0)
    assert meter.rate(0) == 0.0
    for n in range(6):
        meter.add(n * 100 * MS)
    assert meter.rate(500 * MS) == pytest.approx(10.0)  # shorter than the window: still right
    for n in range(6, 50):
        meter.add(n * 100 * MS)
    assert meter.rate(4900 * MS) == pytest.approx(10.0)
    assert meter.rate(5900 * MS) == pytest.approx(5.0)  # falls when events stop coming
    for n in range(50, 70):
        meter.add(n * 200 * MS)
    assert meter.rate(69 * 200 * MS) == pytest.approx(5.0)  # the window forgets the faster times


def test_events_slower_than_the_window_still_have_a_rate() -> None:
    meter = RateMeter(window_s=1.0)
    for n in range(10):
        meter.add(n * 5000 * MS)
    assert meter.rate(45000 * MS) == pytest.approx(0.2)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        RateMeter(0.0)


def test_shares_of_a_sliding_window() -> None:
    meter = ShareMeter(window_s=1.0)
    assert meter.shares(0) == {}
    for end_ms, user, ms in ((100, "a", 50.0), (600, "b", 100.0), (700, "a", 25.0)):
        meter.add(end_ms * MS, user, ms)
    assert meter.shares(1000 * MS) == pytest.approx({"a": 0.075, "b": 0.1})
    assert meter.shares(1101 * MS) == pytest.approx({"a": 0.025, "b": 0.1})
    assert meter.shares(5000 * MS) == {}
    with pytest.raises(ValueError, match="positive"):
        ShareMeter(0.0)


# -- atomic writes --


def test_write_atomic_replaces_text_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "grüße")
    assert path.read_text(encoding="utf-8") == "grüße"
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_written_piece_by_piece_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with open_atomic(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(KeyError), open_atomic(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_whole(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


# -- recorder --


def test_a_finished_run_has_all_its_files(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    recorder = Recorder(out, {"hz": 90.0, "out": out, "bad": math.nan})
    assert strict_json(out / "run.json")["outcome"] == "incomplete"
    frames = [frame(n, frame_ms=float(n)) for n in range(1, 200)]
    chunks = [chunk(n, done_ns=n) for n in range(1, 100)]
    for row in frames:
        recorder.frame(row)
    for part in chunks:
        recorder.chunk(part)
    content = summary(loss_last=math.nan).to_dict(recorder.statistics)
    recorder.finish("ok", content)
    recorder.finish("error: too late", {})

    assert [FrameRow(**row) for row in lines(out / "frames.jsonl")] == frames
    assert [ChunkRow(**row) for row in lines(out / "chunks.jsonl")] == chunks
    run = strict_json(out / "run.json")
    assert (run["outcome"], run["rows_lost"], run["warning"]) == ("ok", 0, None)
    assert run["config"] == {"hz": 90.0, "out": str(out), "bad": None}
    assert run["started"] <= run["finished"]
    written = strict_json(out / "summary.json")
    assert list(written) == CONTRACT_KEYS
    assert (written["frames"], written["chunks"], written["loss_last"]) == (199, 4, None)
    rows = ["chunks.jsonl", "frames.jsonl", "quality.jsonl"]
    assert sorted(os.listdir(out)) == [*rows, "run.json", "summary.json"]
    assert recorder.warning is None


def test_the_clock_is_told_at_the_start_and_better_at_the_end(tmp_path: Path) -> None:
    start, end = Calibration(100, 2000, 5 * MS), Calibration(1100, 1000, 1005 * MS)
    recorder = Recorder(tmp_path, {}, Clock(start))
    told = strict_json(tmp_path / "run.json")["clock"]
    assert told["start"] == {"offset_ns": 100, "error_us": 2.0, "at_ns": 5 * MS}
    assert (told["end"], told["drift_ppm"], told["error_us"]) == (None, None, 2.0)
    recorder.finish("ok", {}, Clock(start, end))
    told = strict_json(tmp_path / "run.json")["clock"]
    assert told["end"] == {"offset_ns": 1100, "error_us": 1.0, "at_ns": 1005 * MS}
    assert told["drift_ppm"] == pytest.approx(1.0, rel=1e-5)
    unstamped = Recorder(tmp_path / "unstamped", {})
    unstamped.finish("ok", {})
    assert strict_json(tmp_path / "unstamped" / "run.json")["clock"] is None


def test_a_new_run_replaces_the_record_in_its_folder(tmp_path: Path) -> None:
    first = Recorder(tmp_path, {})
    first.frame(frame(1))
    first.finish("ok", {})
    second = Recorder(tmp_path, {})
    assert strict_json(tmp_path / "run.json")["outcome"] == "incomplete"
    assert lines(tmp_path / "frames.jsonl") == []
    assert not (tmp_path / "summary.json").exists()
    second.finish("ok", {})


def test_without_a_folder_only_statistics_are_kept() -> None:
    recorder = Recorder(None, {})
    recorder.frame(frame(1, frame_ms=3.0))
    recorder.chunk(chunk(1, done_ns=1))
    recorder.finish("ok", {})
    assert (recorder.statistics.frames, recorder.statistics.runs["train"]) == (1, 1)
    assert recorder.warning is None


KILLED_RUN = """
import os, signal, sys, time
from pathlib import Path
from app.telemetry.recorder import Recorder
from app.telemetry.rows import FrameRow
out = Path(sys.argv[1])
recorder = Recorder(out, {"hz": 90})
for n in range(1, 51):
    recorder.frame(FrameRow(id=n, predicted_display_ns=n, due_ns=n, wait_ns=n))
while (out / "frames.jsonl").stat().st_size == 0:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_run_is_incomplete_and_readable(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, str(tmp_path / "run")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = strict_json(tmp_path / "run" / "run.json")
    assert (run["outcome"], run["finished"]) == ("incomplete", None)
    assert [row["id"] for row in lines(tmp_path / "run" / "frames.jsonl")] == list(range(1, 51))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TelemetryError) as refusal:
        Recorder(tmp_path / "file" / "run", {})
    assert "choose another folder" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(TelemetryError):
        Recorder(tmp_path / "file", {})
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_recording_but_not_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "frames.jsonl").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        recorder = Recorder(tmp_path, {})
        for n in range(1, 101):
            recorder.frame(frame(n))
        assert recorder._writer is not None
        recorder._writer._thread.join(timeout=60)  # ends by itself once the disk fails
        for n in range(101, 151):
            recorder.frame(frame(n))
        recorder.finish("ok", summary().to_dict(recorder.statistics))
    assert recorder.warning is not None and "No space left" in recorder.warning
    assert [record.message for record in caplog.records] == [recorder.warning]
    run = strict_json(tmp_path / "run.json")
    assert (run["outcome"], run["rows_lost"], run["warning"]) == ("ok", 150, recorder.warning)
    assert strict_json(tmp_path / "summary.json")["frames"] == 150


def test_a_disk_full_at_the_end_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path, {})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder_module, "write_atomic", fail)
    recorder.finish("ok", {})
    assert recorder.warning is not None and "No space left" in recorder.warning
    assert strict_json(tmp_path / "run.json")["outcome"] == "incomplete"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_stays_full_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "chunks.jsonl").symlink_to("/dev/full")
    recorder = Recorder(tmp_path, {})
    recorder.chunk(chunk(1))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder_module, "write_atomic", fail)
    recorder.finish("ok", {})
    assert [record.message for record in caplog.records] == [recorder.warning]


def test_rows_waiting_for_a_slow_disk_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "FLUSH_EVERY_S", 3600.0)
    monkeypatch.setattr(recorder_module, "MAX_PENDING_ROWS", 10)
    recorder = Recorder(tmp_path, {})
    for n in range(1, 26):
        recorder.frame(frame(n))
    recorder.finish("ok", {})
    assert len(lines(tmp_path / "frames.jsonl")) == 10
    assert strict_json(tmp_path / "run.json")["rows_lost"] == 15
    assert recorder.statistics.frames == 25
