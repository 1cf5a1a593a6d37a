"""`trace.pftrace`: a run as Perfetto shows it (https://ui.perfetto.dev).

One process with these tracks: the frame loop's thread; the GPU's work, one track per tenant and
job; the display; refreshes missed; counters. An arrow joins a chunk to each frame that came late
because of it. GPU work without stamps is left out rather than guessed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from app.telemetry.folder import RunFolder
from app.telemetry.rows import ChunkRow, FrameRow
from app.telemetry.trace_writer import (
    Annotations,
    NestedSlices,
    SerialSlices,
    Slice,
    TraceWriter,
)
from engine.atomic import open_atomic

JOBS = ("train", "infer")
PHASES = ("begin", "record", "locate", "submit")
"""What the frame loop does between two of a frame's stamps, from `wait_ns` to `end_ns`."""


def write_trace(folder: RunFolder, out: Path | None = None) -> Path:
    """Write the run's trace, `trace.pftrace` in its folder by default; the path.

    The rows are read several times, but never held. Raises `TelemetryError` for damaged rows and
    `OSError` for the disk.
    """
    out = out or folder.path / "trace.pftrace"
    with open_atomic(out) as file:
        _Trace(folder, TraceWriter(file, _start_ns(folder))).write()
    return out


class _Trace:
    """One trace on its way; the flow of a late frame has the frame's id."""

    def __init__(self, folder: RunFolder, writer: TraceWriter) -> None:
        self._folder, self._writer = folder, writer
        self._to_cpu = _drift_correction(folder.clock)
        notes = _clock_notes(folder)
        self._process = process = writer.process("DinoVision", [folder.adapter, *notes])
        self._cpu = NestedSlices(writer, writer.thread("frame loop", process))
        gpu = f"GPU timestamps of {folder.adapter}; {'; '.join(notes)}"
        self._gpu = {
            name: SerialSlices(writer, writer.track(f"GPU {name}", process, rank, gpu))
            for rank, name in enumerate(("eyes", *JOBS), 1)
        }
        self._display = SerialSlices(writer, writer.track("display", process, 4))
        self._missed = writer.track("missed refreshes", process, 5)
        self._in_flight = writer.counter("chunks in flight", process, 6, "chunks")
        self._frame_ms = writer.counter("frame time", process, 7, "ms")
        self._margin_ms = writer.counter("deadline margin", process, 8, "ms")
        self._late: dict[int, list[int]] = {}  # chunk -> frames that came late because of it
        self._explained: set[int] = set()  # late frames whose chunk is known

    def write(self) -> None:
        for frame in self._folder.frames():
            if frame.missed and frame.cause == "chunk" and frame.behind_chunk is not None:
                self._late.setdefault(frame.behind_chunk, []).append(frame.id)
        for chunk in self._folder.chunks():
            self._write_chunk(chunk)
        shown: FrameRow | None = None
        for frame in self._folder.frames():
            self._write_frame(frame)
            if frame.displayed_ns is not None:
                if shown is not None:
                    self._show(shown, frame.displayed_ns)
                shown = frame
        calls = self._frame_slices(), self._submit_slices()
        for piece in heapq.merge(*calls, key=lambda piece: piece.begin_ns):
            self._cpu.add(piece)
        self._cpu.close()
        self._write_notes()

    def _write_chunk(self, chunk: ChunkRow) -> None:
        self._writer.count(self._in_flight, chunk.submit_ns, chunk.in_flight)
        if chunk.end_ns is not None or chunk.submit_ms is not None:
            self._explained.update(self._late.get(chunk.id, ()))
        if chunk.begin_ns is not None and chunk.end_ns is not None:
            piece = Slice(
                self._to_cpu(chunk.begin_ns),
                self._to_cpu(chunk.end_ns),
                f"{chunk.job} {chunk.job_id}: {chunk.index + 1}/{chunk.of}",
                _chunk_notes(chunk),
                tuple(self._late.get(chunk.id, ())),
            )
            self._gpu[chunk.job].add(piece)

    def _write_frame(self, frame: FrameRow) -> None:
        if frame.submit_ns is not None and frame.in_flight_at_submit is not None:
            self._writer.count(self._in_flight, frame.submit_ns, frame.in_flight_at_submit)
        if frame.frame_ms is not None:
            self._writer.count(self._frame_ms, frame.wait_ns, frame.frame_ms)
        if frame.margin_ms is not None:
            self._writer.count(self._margin_ms, frame.wait_ns, frame.margin_ms)
        if frame.eye_begin_ns is not None and frame.eye_end_ns is not None:
            piece = Slice(
                self._to_cpu(frame.eye_begin_ns),
                self._to_cpu(frame.eye_end_ns),
                f"eyes {frame.id}",
                {"frame": frame.id, "gpu_ms": frame.eye_ms, "slack_ms": frame.slack_ms},
                self._flow(frame),
            )
            self._gpu["eyes"].add(piece)
        if frame.missed:
            notes: Annotations = {
                "frame": frame.id,
                "cause": frame.cause,
                "missed": frame.missed,
                "stale_run": frame.stale_run,
                "behind_chunk": frame.behind_chunk,
            }
            name = f"missed: {frame.cause}" if frame.cause else "missed"
            self._writer.instant(self._missed, frame.predicted_display_ns, name, notes)

    def _show(self, frame: FrameRow, until_ns: int) -> None:
        assert frame.displayed_ns is not None
        notes: Annotations = {"frame": frame.id, "predicted_display_ns": frame.predicted_display_ns}
        self._display.add(Slice(frame.displayed_ns, until_ns, f"frame {frame.id}", notes))

    def _frame_slices(self) -> Iterator[Slice]:
        """The frame loop's frames, each followed by the phases within it."""
        for frame in self._folder.frames():
            stamps = (frame.wait_ns, frame.begin_ns, frame.locate_ns, frame.submit_ns, frame.end_ns)
            known = [stamp for stamp in stamps if stamp is not None]
            flow = () if frame.eye_end_ns is not None else self._flow(frame)
            notes = _frame_notes(frame)
            yield Slice(frame.wait_ns, max(known), f"frame {frame.id}", notes, flow)
            phases = zip(PHASES, stamps, stamps[1:], strict=False)
            for name, begin_ns, end_ns in phases:
                if begin_ns is not None and end_ns is not None:
                    yield Slice(begin_ns, end_ns, name)

    def _submit_slices(self) -> Iterator[Slice]:
        """The submit calls of the chunks."""
        for chunk in self._folder.chunks():
            if chunk.submit_ms is not None:
                flow = () if chunk.end_ns is not None else tuple(self._late.get(chunk.id, ()))
                end_ns = chunk.submit_ns + round(chunk.submit_ms * 1e6)
                name = f"submit {chunk.job} {chunk.index + 1}/{chunk.of}"
                yield Slice(chunk.submit_ns, end_ns, name, _chunk_notes(chunk), flow)

    def _flow(self, frame: FrameRow) -> tuple[int, ...]:
        return (frame.id,) if frame.id in self._explained else ()

    def _write_notes(self) -> None:
        """What the run was, and how often stamps had to be moved so that slices nest."""
        clamped = {f"clamped_{name}": slices.clamped for name, slices in self._gpu.items()}
        clamped |= {"clamped_cpu": self._cpu.clamped, "clamped_display": self._display.clamped}
        options = {
            f"option_{name}": value
            for name, value in self._folder.options.items()
            if isinstance(value, str | int | float)
        }
        notes = {"outcome": self._folder.outcome, "adapter": self._folder.adapter}
        clock = {"clock_error_us": self._folder.clock.get("error_us")}
        start_ns = _start_ns(self._folder)
        self._writer.instant(self._process, start_ns, "run", notes | clock | options | clamped)


def _start_ns(folder: RunFolder) -> int:
    """When the first frame started; 0 without frames."""
    return next((frame.wait_ns for frame in folder.frames()), 0)


def _frame_notes(frame: FrameRow) -> Annotations:
    return {
        "frame_ms": frame.frame_ms,
        "slack_ms": frame.slack_ms,
        "missed": frame.missed,
        "stale_run": frame.stale_run,
        "cause": frame.cause or None,
        "chunks_run": frame.chunks_run,
        "chunk_gpu_ms": frame.chunk_gpu_ms,
        "in_flight_at_submit": frame.in_flight_at_submit,
        "behind_chunk": frame.behind_chunk,
        "withheld": frame.withheld or None,
        "presenter_ms": frame.presenter_ms,
        "camera_age_ms": frame.camera_age_ms,
    }


def _chunk_notes(chunk: ChunkRow) -> Annotations:
    return {
        "chunk": chunk.id,
        "job_id": chunk.job_id,
        "index": chunk.index,
        "of": chunk.of,
        "dispatches": chunk.dispatches,
        "frame": chunk.frame_id,
        "gpu_ms": chunk.gpu_ms,
        "predicted_ms": chunk.predicted_ms,
        "in_flight": chunk.in_flight,
        "reason": chunk.reason,
    }


def _clock_notes(folder: RunFolder) -> list[str]:
    """How well the GPU's clock is known, in words."""
    error_us, drift_ppm = folder.clock.get("error_us"), folder.clock.get("drift_ppm")
    if not isinstance(error_us, int | float):
        return ["no GPU timestamps"]
    notes = [f"clock error {error_us:.1f} us"]
    if isinstance(drift_ppm, int | float):
        notes.append(f"drift {drift_ppm:.2f} ppm corrected")
    return notes


def _drift_correction(clock: Mapping[str, object]) -> Callable[[int], int]:
    """From GPU stamps as rows hold them, mapped by the start calibration, to better ones.

    The offset between the clocks is taken to change evenly from one calibration to the other.
    """
    start, end = clock.get("start"), clock.get("end")
    try:
        gained = end["offset_ns"] - start["offset_ns"]  # type: ignore[index]
        since, passed = start["at_ns"], end["at_ns"] - start["at_ns"]  # type: ignore[index]
        rate = gained / (passed - gained)  # per nanosecond of the GPU's clock
    except (TypeError, KeyError, ZeroDivisionError):
        return lambda stamp_ns: stamp_ns
    return lambda stamp_ns: stamp_ns + round((stamp_ns - since) * rate)
