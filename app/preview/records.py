"""What a session leaves behind: rows, video, screenshot and summary in one or two folders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import cv2
import numpy as np

from app.preview.viewers import VideoViewer
from app.telemetry.folder import open_run
from app.telemetry.recorder import Recorder, TelemetryError
from app.telemetry.rows import ChunkRow, FrameRow, QualityRow
from app.telemetry.statistics import Statistics
from app.telemetry.trace import write_trace
from engine.atomic import write_atomic
from engine.clock import Clock

log = logging.getLogger(__name__)

Summarize = Callable[[str, Statistics], dict[str, object]]


class Records:
    """The session's recorder, and a second one that the R key starts and stops.

    Raises TelemetryError when the session's folder cannot be written.
    """

    def __init__(
        self,
        out_dir: Path | None,
        description: Mapping[str, object],
        video: VideoViewer,
        summarize: Summarize,
        clock: Clock | None,
    ) -> None:
        self._description, self._video, self._summarize = description, video, summarize
        self.clock = clock
        """Set anew when the session has ended and the clocks were compared again."""
        self._main = Recorder(out_dir, description, clock)
        self._extra: Recorder | None = None
        self._tracing = ThreadPoolExecutor(1, thread_name_prefix="trace")
        self._traces: list[Future[None]] = []
        if out_dir is not None:
            video.start(out_dir / "preview.mp4")

    @property
    def out_dir(self) -> Path | None:
        """The session's folder; None when it leaves no records."""
        return self._main.out_dir

    @property
    def statistics(self) -> Statistics:
        """Statistics of the whole session."""
        return self._main.statistics

    @property
    def recording(self) -> bool:
        """Whether rows are being written anywhere."""
        return self.out_dir is not None or self._extra is not None

    def frame(self, row: FrameRow) -> None:
        """Record a frame."""
        for recorder in self._recorders():
            recorder.frame(row)

    def chunk(self, row: ChunkRow) -> None:
        """Record a chunk."""
        for recorder in self._recorders():
            recorder.chunk(row)

    def quality(self, row: QualityRow) -> None:
        """Record how well the decoder paints."""
        for recorder in self._recorders():
            recorder.quality(row)

    def toggle(self) -> str:
        """Start or stop a recording of its own; what to tell the user."""
        if self.out_dir is not None:
            return f"already recording to {self.out_dir}"
        if self._extra is not None:
            folder = self._extra.out_dir
            self._stop_extra("ok")
            return f"recorded to {folder}"
        folder = Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
        try:
            self._extra = Recorder(folder, self._description, self.clock)
        except TelemetryError as error:
            return str(error)
        self._video.start(folder / "preview.mp4")
        return f"recording to {folder}"

    def screenshot(self, rgba: np.ndarray) -> None:
        """Write uint8 [h, w, 4] as screenshot.png of the session."""
        if self.out_dir is not None:
            ok, png = cv2.imencode(".png", cv2.cvtColor(rgba, cv2.COLOR_RGBA2BGR))
            assert ok
            try:
                write_atomic(self.out_dir / "screenshot.png", png.tobytes())
            except OSError as error:
                self._main.disk_failed(error)

    def finish(self, outcome: str) -> dict[str, object]:
        """Close everything; the session's summary."""
        self._video.stop()
        self._stop_extra(outcome)
        summary = self._summarize(outcome, self._main.statistics)
        self._close(self._main, outcome, summary)
        self._tracing.shutdown(wait=True)
        for trace in self._traces:
            trace.result()
        return summary

    def _recorders(self) -> list[Recorder]:
        return [self._main, *([self._extra] if self._extra else [])]

    def _stop_extra(self, outcome: str) -> None:
        if self._extra is not None:
            self._video.stop()
            summary = self._summarize(outcome, self._extra.statistics)
            self._close(self._extra, outcome, summary)
            self._extra = None

    def _close(self, recorder: Recorder, outcome: str, summary: Mapping[str, object]) -> None:
        recorder.finish(outcome, summary, self.clock)
        if recorder.out_dir is not None and recorder.warning is None:
            # Beside the frame loop: the session may go on.
            self._traces.append(self._tracing.submit(_write_trace, recorder.out_dir))


def _write_trace(folder: Path) -> None:
    try:
        write_trace(open_run(folder))
    except (OSError, TelemetryError) as error:
        log.warning("no trace.pftrace in %s: %s", folder, error)
