"""From stamps to rows: follows each frame until the compositor's verdict is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.telemetry.rows import FrameRow
from app.xr.driver import FrameResult, FrameTiming


@dataclass
class Draft:
    """A frame on its way; stamps in ns on the clock of `time.perf_counter_ns`."""

    timing: FrameTiming
    wait_ns: int
    interval_ms: float | None = None
    begin_ns: int | None = None
    locate_ns: int | None = None
    submit_ns: int | None = None
    end_ns: int | None = None
    gpu_done_ns: int | None = None
    submit_ms: float | None = None
    in_flight_at_submit: int | None = None
    camera_age_ms: float | None = None
    chunks_run: int = 0
    result: FrameResult | None = None
    serial: int | None = field(default=None, repr=False)

    def row(self) -> FrameRow:
        """The finished row."""
        done, result = self.gpu_done_ns, self.result
        predicted = self.timing.predicted_display_ns
        return FrameRow(
            id=self.timing.frame_id,
            predicted_display_ns=predicted,
            wait_ns=self.wait_ns,
            begin_ns=self.begin_ns,
            locate_ns=self.locate_ns,
            submit_ns=self.submit_ns,
            end_ns=self.end_ns,
            gpu_done_ns=done,
            frame_ms=None if done is None else (done - self.wait_ns) / 1e6,
            interval_ms=self.interval_ms,
            submit_ms=self.submit_ms,
            slack_ms=None if done is None else (predicted - done) / 1e6,
            missed=None if result is None else result.missed,
            stale_run=None if result is None else result.stale_run,
            displayed_ns=None if result is None else result.displayed_ns or None,
            chunks_run=self.chunks_run,
            in_flight_at_submit=self.in_flight_at_submit,
            camera_age_ms=self.camera_age_ms,
        )


class FrameLog:
    """Frames in flight, in order. `emit` gets each row once, when nothing about it can change."""

    def __init__(self, emit: Callable[[FrameRow], None]) -> None:
        self._emit = emit
        self._drafts: deque[Draft] = deque()
        self._last_wait_ns: int | None = None

    def start(self, timing: FrameTiming, wait_ns: int) -> Draft:
        """A frame begins; the one before can get no more chunks."""
        last = self._last_wait_ns
        draft = Draft(timing, wait_ns, None if last is None else (wait_ns - last) / 1e6)
        self._last_wait_ns = wait_ns
        self._drafts.append(draft)
        return draft

    def count_chunks(self, chunks: int) -> None:
        """Chunks submitted since the newest frame started."""
        if self._drafts:
            self._drafts[-1].chunks_run = chunks

    def completed(self, serial: int, done_ns: int) -> Draft | None:
        """Note a completion; the frame whose eye images it carried, if any."""
        for draft in self._drafts:
            if draft.serial == serial:
                draft.gpu_done_ns = done_ns
                return draft
        return None

    def settle(self, results: Iterable[FrameResult]) -> None:
        """Note verdicts and emit what is finished."""
        by_id = {draft.timing.frame_id: draft for draft in self._drafts}
        for result in results:
            if result.frame_id in by_id:
                by_id[result.frame_id].result = result
        while len(self._drafts) > 1 and self._drafts[0].result is not None:
            self._emit(self._drafts.popleft().row())

    def finish(self) -> None:
        """Emit the rest as it is."""
        while self._drafts:
            self._emit(self._drafts.popleft().row())
