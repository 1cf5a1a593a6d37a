"""The rows of `frames.jsonl`, `chunks.jsonl` and `quality.jsonl`: a frame, chunk or figure a line.

Stamps (`_ns`) are on the clock of `time.perf_counter_ns`, durations (`_ms`) in milliseconds;
None (null in JSON) where not known.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRow:
    """One frame of the loop. `eye_*_ns` are GPU stamps on the CPU clock: see `engine.clock`."""

    id: int
    """Frame number, from 1."""
    predicted_display_ns: int
    """When the driver promised to show the frame."""
    due_ns: int
    """When its eye images must be complete for that."""
    wait_ns: int
    """When `wait_frame` returned."""
    begin_ns: int | None = None
    """When `begin_frame` was called."""
    locate_ns: int | None = None
    """When the views were located; None: the frame was not rendered."""
    submit_ns: int | None = None
    """When the eye images were about to be submitted."""
    end_ns: int | None = None
    """When `end_frame` returned."""
    eye_begin_ns: int | None = None
    """When the GPU began the eye images."""
    eye_end_ns: int | None = None
    """When it finished them."""
    gpu_done_ns: int | None = None
    """When their completion was observed."""
    frame_ms: float | None = None
    """From `wait_ns` to the end of the eye images."""
    interval_ms: float | None = None
    """Since the previous frame's `wait_ns`."""
    eye_ms: float | None = None
    """GPU time of the eye images."""
    submit_ms: float | None = None
    """What the submit call of the eye images took."""
    slack_ms: float | None = None
    """From the end of the eye images to `due_ns`; negative: too late."""
    missed: int | None = None
    """Refreshes beyond the predicted one until the frame, or one that overtook it, was shown."""
    stale_run: int | None = None
    """Refreshes just before that one which repeated an old image."""
    displayed_ns: int | None = None
    """When the frame was first shown; None: dropped, or the session ended before."""
    chunks_run: int = 0
    """Chunks submitted from this frame's `wait_ns` to the next one's."""
    chunk_gpu_ms: float | None = None
    """GPU time of those."""
    in_flight_at_submit: int | None = None
    """Chunks in flight when the eye images were submitted."""
    behind_chunk: int | None = None
    """The newest chunk that the eye images had to wait for, or that eye images ahead of them in
    the queue had to wait for."""
    cause: Literal["", "chunk", "start", "render"] = ""
    """Why a refresh was missed: chunks ahead in the queue, a late start on the CPU, or the eye
    images themselves."""
    withheld: str = ""
    """Why the policy submitted no further chunk, at last."""
    margin_ms: float | None = None
    """The deadline policy's safety margin at the frame's start."""
    presenter_ms: float | None = None
    """What handing the images over took on the CPU; None: nothing had to be done."""
    presenter_bytes: int | None = None
    """Bytes of eye images written to the host's memory for that."""
    camera_age_ms: float | None = None
    """Age of the camera image shown, at `locate_ns`."""

    @property
    def refreshes(self) -> int:
        """Refreshes up to the one that first showed the frame, since the one before; 0: dropped."""
        return 0 if self.displayed_ns is None else 1 + (self.stale_run or 0)

    @property
    def missed_refreshes(self) -> int:
        """Those of them that did not show the frame drawn for them.

        They repeated an old image, or showed a frame drawn for an earlier refresh.
        """
        if self.displayed_ns is None:
            return 0
        return (self.stale_run or 0) + (self.missed != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRow:
    """One chunk of network work. `begin_ns` and `end_ns` are GPU stamps on the CPU clock."""

    id: int
    """Chunk number, from 1, over all jobs."""
    job: Literal["train", "infer"]
    """What the chunk belongs to: a training step or an inference."""
    job_id: int
    """Number of that step or inference."""
    index: int
    """Position in the job, from 0."""
    of: int
    """Chunks of the job."""
    dispatches: int
    """Dispatches in the chunk."""
    frame_id: int
    """Frame in which it was submitted."""
    submit_ns: int
    """When it was about to be submitted."""
    begin_ns: int | None = None
    """When the GPU began it."""
    end_ns: int | None = None
    """When the GPU finished it."""
    gpu_ms: float | None = None
    """GPU time; without stamps what the observed completions allow it to be at most."""
    predicted_ms: float | None = None
    """What the scheduler expected; None: it knew nothing yet."""
    done_ns: int | None = None
    """When its completion was observed."""
    submit_ms: float | None = None
    """What the submit call took."""
    in_flight: int
    """Chunks in flight once it was submitted, itself included."""
    reason: str
    """Why the policy submitted it."""

    @property
    def ended_ns(self) -> int | None:
        """When the GPU finished it, as well as is known: stamped, else as observed."""
        return self.done_ns if self.end_ns is None else self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """How well the decoder paints, measured beside the frames. PSNR in dB, None: not finite."""

    measured_ns: int
    """When the figure came back."""
    step: int
    """Training steps that its weights had learnt."""
    photo: int | None
    """The held-out photograph measured, from 0; None: all of them, before or after the frames."""
    photo_db: float | None
    """PSNR of that photograph."""
    held_out_db: float | None
    """PSNR over all pixels of all held-out photographs, each as it was measured last."""
    camera_db: float | None
    """PSNR of the camera's newest image; None also while it is painted with the first weights."""


Row = FrameRow | ChunkRow | QualityRow
ROWS: tuple[type[Row], ...] = (FrameRow, ChunkRow, QualityRow)
_NAMES = {row: tuple(f.name for f in dataclasses.fields(row)) for row in ROWS}
_LINE = json.JSONEncoder(allow_nan=False)


def row_line(row: Row) -> str:
    """The row as one JSON line with its newline. `FrameRow(**json.loads(line))` reads it back."""
    fields = {name: getattr(row, name) for name in _NAMES[type(row)]}
    try:
        return _LINE.encode(fields) + "\n"
    except ValueError:  # a number that is not finite
        return to_json(fields) + "\n"


def to_json(value: object, indent: int | None = None) -> str:
    """Strict JSON: infinities and NaN become null, numpy scalars numbers, other objects text."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _plain(value.tolist())
    return str(value)
