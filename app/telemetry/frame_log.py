"""From stamps to rows: follows each frame until the compositor's verdict is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from app.telemetry.rows import ChunkRow, FrameRow
from app.xr.driver import FrameResult, FrameTiming

MOST_OPEN = 256
"""Frames that may wait for their verdict."""


@dataclass
class FrameDraft:
    """A frame on its way; stamps in ns on the clock of `time.perf_counter_ns`.

    `id` is its number in the records: a driver that was lost and found counts anew. `serial` names
    the submission of its eye images, `span` their GPU stamps (None: no stamps).
    """

    id: int
    timing: FrameTiming
    wait_ns: int
    interval_ms: float | None = None
    margin_ms: float | None = None
    begin_ns: int | None = None
    locate_ns: int | None = None
    submit_ns: int | None = None
    end_ns: int | None = None
    eye_begin_ns: int | None = None
    eye_end_ns: int | None = None
    gpu_done_ns: int | None = None
    submit_ms: float | None = None
    in_flight_at_submit: int | None = None
    behind_chunk: int | None = None
    presenter_ms: float | None = None
    presenter_bytes: int | None = None
    camera_age_ms: float | None = None
    chunks_run: int = 0
    withheld: str = ""
    chunks_known: int = 0
    chunk_gpu_ms: float | None = 0.0
    result: FrameResult | None = None
    serial: int | None = None
    span: int | None = None

    @property
    def known(self) -> bool:
        """Whether nothing can change any more, once a later frame has started."""
        rendered = self.timing.should_render
        stamped = self.span is None or self.eye_end_ns is not None
        judged = not rendered or self.result is not None
        return stamped and judged and self.chunks_known >= self.chunks_run

    @property
    def eye_ms(self) -> float | None:
        """GPU time of the eye images; None without stamps."""
        if self.eye_begin_ns is None or self.eye_end_ns is None:
            return None
        return (self.eye_end_ns - self.eye_begin_ns) / 1e6

    def cause(self) -> Literal["", "chunk", "start", "render"]:
        """Why a refresh was missed; empty when none was.

        Eye images that need more than a period are to blame themselves. Else the start was late,
        if it left them less than they need. Else chunks are, if there was one ahead of them.
        """
        result = self.result
        if result is None or (result.missed == 0 and result.stale_run == 0):
            return ""
        if self.submit_ns is None or result.missed == 0:
            return "start"  # the refreshes before this frame had none started for them
        need_ns = round((self.eye_ms or 0.0) * 1e6)
        if need_ns > self.timing.period_ns:
            return "render"
        if self.submit_ns + need_ns > self.timing.due_ns:
            return "start"
        return "chunk" if self.behind_chunk is not None else "render"

    def row(self) -> FrameRow:
        """The finished row."""
        result, due_ns = self.result, self.timing.due_ns
        done_ns = self.gpu_done_ns if self.eye_end_ns is None else self.eye_end_ns
        return FrameRow(
            id=self.id,
            predicted_display_ns=self.timing.predicted_display_ns,
            due_ns=due_ns,
            wait_ns=self.wait_ns,
            begin_ns=self.begin_ns,
            locate_ns=self.locate_ns,
            submit_ns=self.submit_ns,
            end_ns=self.end_ns,
            eye_begin_ns=self.eye_begin_ns,
            eye_end_ns=self.eye_end_ns,
            gpu_done_ns=self.gpu_done_ns,
            frame_ms=None if done_ns is None else (done_ns - self.wait_ns) / 1e6,
            interval_ms=self.interval_ms,
            eye_ms=self.eye_ms,
            submit_ms=self.submit_ms,
            slack_ms=None if done_ns is None else (due_ns - done_ns) / 1e6,
            missed=None if result is None else result.missed,
            stale_run=None if result is None else result.stale_run,
            displayed_ns=None if result is None else result.displayed_ns or None,
            chunks_run=self.chunks_run,
            chunk_gpu_ms=self.chunk_gpu_ms if self.chunks_known >= self.chunks_run else None,
            in_flight_at_submit=self.in_flight_at_submit,
            behind_chunk=self.behind_chunk,
            cause=self.cause(),
            withheld=self.withheld,
            margin_ms=self.margin_ms,
            presenter_ms=self.presenter_ms,
            presenter_bytes=self.presenter_bytes,
            camera_age_ms=self.camera_age_ms,
        )


class FrameLog:
    """Frames in flight, in order. `emit` gets each row once, when nothing about it can change."""

    def __init__(self, emit: Callable[[FrameRow], None]) -> None:
        self._emit = emit
        self._drafts: deque[FrameDraft] = deque()
        self._last_wait_ns: int | None = None
        self._count = 0

    def start(self, timing: FrameTiming, wait_ns: int) -> FrameDraft:
        """A frame begins; the one before can get no more chunks."""
        last = self._last_wait_ns
        self._count += 1
        interval_ms = None if last is None else (wait_ns - last) / 1e6
        draft = FrameDraft(self._count, timing, wait_ns, interval_ms)
        self._last_wait_ns = wait_ns
        self._drafts.append(draft)
        return draft

    def chunk_ahead(self, newest: int | None) -> int | None:
        """The chunk that the newest frame's eyes, submitted now, have to wait for.

        `newest`: the newest one in flight. Without any it may still be the one that the eyes
        before, which are in the queue themselves, had to wait for.
        """
        before = self._drafts[-2] if len(self._drafts) > 1 else None
        if newest is None and before is not None and before.gpu_done_ns is None:
            return before.behind_chunk
        return newest

    def count_chunks(self, chunks: int, withheld: str = "") -> None:
        """Chunks submitted since the newest frame started, and why there were no more."""
        if self._drafts:
            self._drafts[-1].chunks_run, self._drafts[-1].withheld = chunks, withheld

    def chunk_known(self, row: ChunkRow) -> None:
        """Add a finished chunk to the frame in which it was submitted."""
        for draft in self._drafts:
            if draft.id == row.frame_id:
                draft.chunks_known += 1
                known = draft.chunk_gpu_ms is not None and row.gpu_ms is not None
                draft.chunk_gpu_ms = draft.chunk_gpu_ms + row.gpu_ms if known else None  # type: ignore[operator]
                return

    def completed(self, serial: int, done_ns: int) -> FrameDraft | None:
        """Note a completion; the frame whose eye images it carried, if any."""
        for draft in self._drafts:
            if draft.serial == serial:
                draft.gpu_done_ns = done_ns
                return draft
        return None

    def stamped(self, span: int, begin_ns: int, end_ns: int) -> FrameDraft | None:
        """Note GPU stamps; the frame they belong to, if any."""
        for draft in self._drafts:
            if draft.span == span:
                draft.eye_begin_ns, draft.eye_end_ns = begin_ns, end_ns
                return draft
        return None

    def stamps_passed(self, span: int) -> list[FrameDraft]:
        """Spans come in order: what is older than `span` and not stamped never will be.

        Returns the frames that have lost theirs.
        """
        lost = [
            draft
            for draft in self._drafts
            if draft.span is not None and draft.span < span and draft.eye_end_ns is None
        ]
        for draft in lost:
            draft.span = None
        return lost

    def presented(self, frame_id: int, presenter_ms: float, host_bytes: int) -> None:
        """Note what handing the driver's frame `frame_id` over cost."""
        for draft in self._drafts:
            if draft.timing.frame_id == frame_id:
                draft.presenter_ms, draft.presenter_bytes = presenter_ms, host_bytes

    def settle(self, results: Iterable[FrameResult]) -> None:
        """Note verdicts and emit what is finished."""
        by_id = {draft.timing.frame_id: draft for draft in self._drafts}
        for result in results:
            if result.frame_id in by_id:
                by_id[result.frame_id].result = result
        # A verdict that never comes must not keep all later rows for ever.
        while len(self._drafts) > 1 and (self._drafts[0].known or len(self._drafts) > MOST_OPEN):
            self._emit(self._drafts.popleft().row())

    def finish(self) -> None:
        """Emit the rest as it is."""
        while self._drafts:
            self._emit(self._drafts.popleft().row())
