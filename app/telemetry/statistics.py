"""Running statistics of a session, in bounded memory: 8 bytes per sample, hours are fine."""

from __future__ import annotations

from array import array

from app.telemetry.rows import ChunkRow, FrameRow


class Statistics:
    """What the rows add up to. Inferences must not overlap: their chunks come job after job."""

    def __init__(self) -> None:
        self.frames = 0
        self.chunks = 0
        self.train_steps = 0
        self.inferences = 0
        self.fresh = 0
        """Refreshes that showed a new frame."""
        self.stale = 0
        """Refreshes that repeated an old image, up to the last fresh one."""
        self.longest_stale_run = 0
        self.dropped = 0
        self.frame_ms = array("d")
        self.submit_ms = array("d")
        self.infer_ms = array("d")
        """From submitting an inference's first chunk to the observed end of its last."""
        self._first_wait_ns: int | None = None
        self._last_wait_ns = 0
        self._infer_start: tuple[int, int] | None = None  # job id, submit of its first chunk

    def add_frame(self, row: FrameRow) -> None:
        """Count a frame."""
        self.frames += 1
        if self._first_wait_ns is None:
            self._first_wait_ns = row.wait_ns
        self._last_wait_ns = row.wait_ns
        if row.frame_ms is not None:
            self.frame_ms.append(row.frame_ms)
        if row.submit_ms is not None:
            self.submit_ms.append(row.submit_ms)
        if row.displayed_ns is not None:
            run = row.stale_run or 0
            self.fresh += 1
            self.stale += run
            self.longest_stale_run = max(self.longest_stale_run, run)
        elif row.missed is not None:
            self.dropped += 1

    def add_chunk(self, row: ChunkRow) -> None:
        """Count a chunk; rows come in order of submission."""
        self.chunks += 1
        if row.job == "infer" and row.index == 0:
            self._infer_start = (row.job_id, row.submit_ns)
        if row.index != row.of - 1 or row.done_ns is None:
            return
        if row.job == "train":
            self.train_steps += 1
        else:
            self.inferences += 1
            if self._infer_start is not None and self._infer_start[0] == row.job_id:
                self.infer_ms.append((row.done_ns - self._infer_start[1]) / 1e6)

    @property
    def vsyncs(self) -> int:
        """Refreshes from the first shown frame to the last."""
        return self.fresh + self.stale

    @property
    def missed_per_1000(self) -> float:
        """Stale refreshes per thousand; 0 before anything was shown."""
        return 1000.0 * self.stale / self.vsyncs if self.vsyncs else 0.0

    @property
    def seconds(self) -> float:
        """From the first frame's start to the last's."""
        return (self._last_wait_ns - (self._first_wait_ns or 0)) / 1e9 if self.frames else 0.0

    @property
    def train_steps_per_s(self) -> float:
        """Training steps per second of the session."""
        return self.train_steps / self.seconds if self.seconds > 0 else 0.0
