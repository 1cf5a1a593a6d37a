"""The trace of a run, read back with the format's own classes."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from app.telemetry.folder import open_run
from app.telemetry.trace import write_trace
from app.telemetry.trace_writer import MONOTONIC
from tests.run_folders import START_NS, RunModel


@dataclass
class Slice:
    begin: int
    end: int
    name: str
    depth: int
    notes: dict[str, Any]
    flows: list[int]


class Parsed:
    """A trace taken apart: the slices, instants and counters of each track, by its name."""

    def __init__(self, path: Path) -> None:
        trace = Trace()
        trace.ParseFromString(path.read_bytes())
        self.packets = list(trace.packet)
        tracks = [p.track_descriptor for p in self.packets if p.HasField("track_descriptor")]
        self.tracks = {track.uuid: track for track in tracks}
        assert len(self.tracks) == len(tracks)
        self.slices: dict[str, list[Slice]] = defaultdict(list)
        self.instants: dict[str, list[TracePacket]] = defaultdict(list)
        self.counts: dict[str, list[tuple[int, float]]] = defaultdict(list)
        opened: dict[str, list[Slice]] = defaultdict(list)
        events = [p for p in self.packets if p.HasField("track_event")]
        for packet in sorted(events, key=lambda p: p.timestamp):  # stable, as viewers sort
            self._take(packet, opened[self.tracks[packet.track_event.track_uuid].name])
        assert not any(opened.values()), "slices without an end"

    def _take(self, packet: TracePacket, opened: list[Slice]) -> None:
        event, at = packet.track_event, packet.timestamp
        name = self.tracks[event.track_uuid].name
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            piece = Slice(at, -1, event.name, len(opened), notes(event), list(event.flow_ids))
            self.slices[name].append(piece)
            opened.append(piece)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            opened.pop().end = at
        elif event.type == TrackEvent.TYPE_COUNTER:
            assert self.tracks[event.track_uuid].HasField("counter")
            self.counts[name].append((at, event.double_counter_value))
        else:
            self.instants[name].append(packet)

    def flow_ends(self) -> dict[int, list[str]]:
        ends = defaultdict(list)
        for pieces in self.slices.values():
            for piece in pieces:
                for flow in piece.flows:
                    ends[flow].append(piece.name)
        return ends


def notes(event: TrackEvent) -> dict[str, Any]:
    return {n.name: getattr(n, n.WhichOneof("value")) for n in event.debug_annotations}


def traced(model: RunModel, path: Path, outcome: str = "ok") -> Parsed:
    return Parsed(write_trace(open_run(model.write(path, outcome))))


@pytest.fixture
def model() -> RunModel:
    return RunModel(policy="deadline", in_flight=2, eye_ms=3.0, chunk_ms=2.0)


def late(model: RunModel) -> list[Any]:
    return [row for row in model.frame_rows if row.missed]


def test_one_sequence_and_one_clock(model: RunModel, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "run")
    first, *others = trace.packets
    assert {p.trusted_packet_sequence_id for p in trace.packets} == {1}
    assert first.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert all(p.sequence_flags == TracePacket.SEQ_NEEDS_INCREMENTAL_STATE for p in others)
    assert first.trace_packet_defaults.timestamp_clock_id == MONOTONIC
    assert first.clock_snapshot.primary_trace_clock == MONOTONIC
    (clock,) = first.clock_snapshot.clocks
    assert (clock.clock_id, clock.timestamp) == (MONOTONIC, model.frame_rows[0].wait_ns)
    stamps = [p.timestamp for p in others if p.HasField("track_event")]
    assert START_NS <= min(stamps) and max(stamps) < START_NS + 10**10
    assert not any(p.HasField("timestamp_clock_id") for p in trace.packets)


def test_tracks_belong_to_the_process_and_say_what_they_are(
    model: RunModel, tmp_path: Path
) -> None:
    trace = traced(model, tmp_path / "run")
    process = next(t for t in trace.tracks.values() if t.HasField("process"))
    assert process.process.process_name == "DinoVision"
    assert list(process.process.process_labels) == ["Example <GPU> & Co", "clock error 12.5 us"]
    others = [track for track in trace.tracks.values() if track is not process]
    assert {track.parent_uuid for track in others} == {process.uuid}
    ranks = [track.sibling_order_rank for track in others if not track.HasField("thread")]
    assert len(set(ranks)) == len(ranks)
    for track in others:
        if track.name.startswith("GPU"):
            assert "Example <GPU>" in track.description and "12.5 us" in track.description
    (run,) = trace.instants["DinoVision"]
    found = notes(run.track_event)
    assert found["option_chunks"] == 4 and found["option_hz"] == 90.0
    assert found["outcome"] == "ok" and found["clamped_cpu"] == found["clamped_eyes"] == 0


def test_every_frame_with_its_phases(model: RunModel, tmp_path: Path) -> None:
    pieces = traced(model, tmp_path / "run").slices["frame loop"]
    frames = [piece for piece in pieces if piece.name.startswith("frame ")]
    assert [(p.name, p.begin, p.end) for p in frames] == [
        (f"frame {row.id}", row.wait_ns, row.end_ns) for row in model.frame_rows
    ]
    assert {piece.depth for piece in frames} == {0}
    for name in ("begin", "record", "locate", "submit"):
        phases = [piece for piece in pieces if piece.name == name]
        assert len(phases) == len(frames) and {piece.depth for piece in phases} == {1}
    for frame, row in zip(frames, model.frame_rows, strict=True):
        assert frame.notes["slack_ms"] == row.slack_ms
        assert frame.notes["withheld"] == "frame quota used"
    submits = [piece for piece in pieces if piece.name.startswith("submit ")]
    assert [piece.begin for piece in submits] == [row.submit_ns for row in model.chunk_rows]


def test_every_chunk_on_the_track_of_its_job(model: RunModel, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "run")
    for job in ("train", "infer"):
        rows = [row for row in model.chunk_rows if row.job == job]
        pieces = trace.slices[f"GPU {job}"]
        assert [(p.begin, p.end) for p in pieces] == [(r.begin_ns, r.end_ns) for r in rows]
        for piece, row in zip(pieces, rows, strict=True):
            assert piece.name == f"{job} {row.job_id}: {row.index + 1}/4"
            wanted = {"chunk": row.id, "index": row.index, "of": 4, "job_id": row.job_id}
            wanted |= {"reason": "frame quota", "predicted_ms": 2.0}
            assert wanted.items() <= piece.notes.items()
    eyes = trace.slices["GPU eyes"]
    assert [(p.begin, p.end) for p in eyes] == [
        (row.eye_begin_ns, row.eye_end_ns) for row in model.frame_rows
    ]


def test_slices_nest_and_gpu_tracks_never_overlap(model: RunModel, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "run")
    for name, pieces in trace.slices.items():
        assert all(piece.begin <= piece.end for piece in pieces)
        if name != "frame loop":
            assert {piece.depth for piece in pieces} == {0}
            assert all(a.end <= b.begin for a, b in itertools.pairwise(pieces))


def test_arrows_from_the_guilty_chunk_to_the_late_frame(model: RunModel, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "run")
    rows = late(model)
    assert len(rows) >= 2
    chunks = {row.id: row for row in model.chunk_rows}
    expected = {}
    for row in rows:
        chunk = chunks[row.behind_chunk]
        name = f"{chunk.job} {chunk.job_id}: {chunk.index + 1}/{chunk.of}"
        expected[row.id] = sorted([name, f"eyes {row.id}"])
    assert {flow: sorted(ends) for flow, ends in trace.flow_ends().items()} == expected


def test_the_display_shows_each_frame_until_the_next(model: RunModel, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "run")
    shown = [row.displayed_ns for row in model.frame_rows if row.displayed_ns is not None]
    assert len(shown) < len(model.frame_rows)  # an overtaken frame is shown never
    pieces = trace.slices["display"]
    assert [(p.begin, p.end) for p in pieces] == list(itertools.pairwise(shown))
    missed = trace.instants["missed refreshes"]
    assert [p.track_event.name for p in missed] == ["missed: chunk"] * len(late(model))
    assert [p.timestamp for p in missed] == [row.predicted_display_ns for row in late(model)]


def test_counters(model: RunModel, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "run")
    assert trace.counts["frame time"] == [(r.wait_ns, r.frame_ms) for r in model.frame_rows]
    assert {value for _, value in trace.counts["deadline margin"]} == {1.5}
    assert dict(trace.counts["chunks in flight"]).items() >= {
        (row.submit_ns, row.in_flight) for row in model.chunk_rows
    }


def test_without_stamps_no_gpu_work_is_invented(tmp_path: Path) -> None:
    model = RunModel(stamps=False)
    trace = traced(model, tmp_path / "run")
    assert not any(name.startswith("GPU") for name in trace.slices)
    rows, ends = late(model), trace.flow_ends()
    assert rows and set(ends) == {row.id for row in rows}
    for row in rows:  # the arrow then joins what the frame loop did
        assert sorted(name.split()[0] for name in ends[row.id]) == ["frame", "submit"]


def test_wobbling_stamps_are_clamped_and_counted(model: RunModel, tmp_path: Path) -> None:
    rows = model.chunk_rows
    for index in (10, 11):  # of one training step
        begin = rows[index].begin_ns
        assert begin is not None
        rows[index] = replace(rows[index], begin_ns=begin - 5_000_000)
    rows[30] = replace(rows[30], end_ns=(rows[30].begin_ns or 0) - 7)
    frame = model.frame_rows[20]
    model.frame_rows[20] = replace(frame, begin_ns=(frame.end_ns or 0) + 1_000)
    trace = traced(model, tmp_path / "run")
    for job in ("train", "infer"):
        pieces = trace.slices[f"GPU {job}"]
        assert all(a.end <= b.begin for a, b in itertools.pairwise(pieces))
    found = notes(trace.instants["DinoVision"][0].track_event)
    assert found["clamped_train"] + found["clamped_infer"] >= 2
    assert found["clamped_cpu"] >= 1 and found["clamped_eyes"] == 0


def test_a_killed_run(model: RunModel, tmp_path: Path) -> None:
    path = model.write(tmp_path / "run", "incomplete")
    for name in ("frames.jsonl", "chunks.jsonl"):
        text = (path / name).read_text()
        (path / name).write_text(text[: len(text) - 40])
    trace = Parsed(write_trace(open_run(path), tmp_path / "elsewhere.pftrace"))
    assert len(trace.counts["frame time"]) == len(model.frame_rows) - 1
    assert notes(trace.instants["DinoVision"][0].track_event)["outcome"] == "incomplete"
    assert not (path / "trace.pftrace").exists()


def test_options_of_every_kind_are_noted(model: RunModel, tmp_path: Path) -> None:
    path = model.write(tmp_path / "run")
    run = json.loads((path / "run.json").read_text())
    options = {"fresh": True, "headless": False, "seed": 1 << 70, "hz": 72.5, "save": None}
    run["config"]["options"] |= options
    (path / "run.json").write_text(json.dumps(run))
    trace = Parsed(write_trace(open_run(path)))
    found = notes(trace.instants["DinoVision"][0].track_event)
    assert (found["option_fresh"], found["option_headless"]) == (True, False)
    assert (found["option_hz"], found["option_policy"]) == (72.5, "deadline")
    assert found["option_seed"] == str(1 << 70) and "option_save" not in found


def test_an_arrow_needs_both_ends(model: RunModel, tmp_path: Path) -> None:
    guilty = late(model)[0].behind_chunk
    model.chunk_rows = [row for row in model.chunk_rows if row.id != guilty]
    trace = traced(model, tmp_path / "run")
    assert late(model)[0].id not in trace.flow_ends()


def test_a_run_without_rows(tmp_path: Path) -> None:
    trace = traced(RunModel(frames=0), tmp_path / "run")
    assert not trace.slices and len(trace.tracks) == 10


def test_drift_since_the_start_is_corrected(model: RunModel, tmp_path: Path) -> None:
    path = model.write(tmp_path / "run")
    run = json.loads((path / "run.json").read_text())
    start = run["clock"]["start"]
    gained, passed = 100_000, 1_000_000_000
    run["clock"]["end"] = {
        "offset_ns": start["offset_ns"] + gained,
        "error_us": 9.0,
        "at_ns": start["at_ns"] + passed,
    }
    run["clock"]["drift_ppm"] = 100.01
    (path / "run.json").write_text(json.dumps(run))
    trace = Parsed(write_trace(open_run(path)))
    for piece, row in zip(trace.slices["GPU eyes"], model.frame_rows, strict=True):
        assert row.eye_begin_ns is not None
        moved = gained * (row.eye_begin_ns - start["at_ns"]) / (passed - gained)
        assert piece.begin - row.eye_begin_ns == pytest.approx(moved, abs=1)
    process = next(t for t in trace.tracks.values() if t.HasField("process"))
    assert "drift 100.01 ppm corrected" in process.process.process_labels


@pytest.mark.skipif(shutil.which("trace_processor_shell") is None, reason="not on the PATH")
def test_perfettos_own_processor_finds_no_fault(model: RunModel, tmp_path: Path) -> None:
    path = write_trace(open_run(model.write(tmp_path / "run")))
    query = tmp_path / "query.sql"

    def ask(sql: str) -> list[str]:
        query.write_text(sql)
        command = ["trace_processor_shell", "-q", str(query), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout.split()[1:]

    assert ask("select count(*) from slice where name glob 'eyes *'") == [
        str(len(model.frame_rows))
    ]
    assert ask("select count(*) from slice where dur < 0") == ["0"]
    assert ask("select count(*) from flow") == [str(len(late(model)))]
    assert ask("select sum(value) from stats where severity in ('error', 'data_loss')") == ["0"]
