"""Running statistics of a session, in bounded memory: 8 bytes per sample, hours are fine."""

from __future__ import annotations

from array import array
from collections import Counter

from app.telemetry.adaptation import Adaptation
from app.telemetry.rows import ChunkRow, FrameRow, QualityRow
from app.telemetry.run_times import RunTimes

CAUSES = ("chunk", "start", "render")


class Statistics:
    """What the rows add up to. Runs of a job must not overlap: their chunks come in order."""

    def __init__(self) -> None:
        self.frames = 0
        self.chunks = 0
        self.fresh = 0
        """Refreshes that showed a new frame."""
        self.missed = 0
        """Refreshes that repeated an old image, or showed a frame drawn for an earlier refresh.

        A renderer that is always late by a refresh repeats nothing, but shows the world as seen
        from where the head was.
        """
        self.stale = 0
        """Refreshes that repeated an old image, up to the last fresh one."""
        self.longest_stale_run = 0
        self.dropped = 0
        self.causes: Counter[str] = Counter()
        """Frames that missed a refresh, by cause."""
        self.frame_ms = array("d")
        self.eye_ms = array("d")
        self.submit_ms = array("d")
        self.presenter_ms = array("d")
        self.run_ms = {"train": array("d"), "infer": array("d")}
        """From submitting a run's first chunk to the end of its last."""
        self.runs: Counter[str] = Counter()
        self.gpu_ms = {"render": 0.0, "train": 0.0, "infer": 0.0}
        """GPU time by tenant."""
        self.adaptation = Adaptation()
        self._first_wait_ns: int | None = None
        self._last_wait_ns = 0
        self._run_times = RunTimes()

    def add_frame(self, row: FrameRow) -> None:
        """Count a frame."""
        self.frames += 1
        if self._first_wait_ns is None:
            self._first_wait_ns = row.wait_ns
        self._last_wait_ns = row.wait_ns
        for value, samples in (
            (row.frame_ms, self.frame_ms),
            (row.eye_ms, self.eye_ms),
            (row.submit_ms, self.submit_ms),
            (row.presenter_ms, self.presenter_ms),
        ):
            if value is not None:
                samples.append(value)
        self.gpu_ms["render"] += row.eye_ms or 0.0
        if row.cause:
            self.causes[row.cause] += 1
        if row.displayed_ns is not None:
            run = row.stale_run or 0
            self.fresh += 1
            self.missed += row.missed_refreshes
            self.stale += run
            self.longest_stale_run = max(self.longest_stale_run, run)
        elif row.missed is not None:
            self.dropped += 1

    def add_chunk(self, row: ChunkRow) -> None:
        """Count a chunk; rows come in order of submission."""
        self.chunks += 1
        self.gpu_ms[row.job] += row.gpu_ms or 0.0
        run = self._run_times.add(row)
        if run is None:
            return
        self.runs[row.job] += 1
        if run.ms is not None:
            self.run_ms[row.job].append(run.ms)

    def add_quality(self, row: QualityRow) -> None:
        """Take a figure of the decoder."""
        self.adaptation.add(row)

    @property
    def vsyncs(self) -> int:
        """Refreshes from the first shown frame to the last."""
        return self.fresh + self.stale

    @property
    def missed_per_1000(self) -> float:
        """Missed refreshes per thousand; 0 before anything was shown."""
        return 1000.0 * self.missed / self.vsyncs if self.vsyncs else 0.0

    @property
    def seconds(self) -> float:
        """From the first frame's start to the last's."""
        return (self._last_wait_ns - (self._first_wait_ns or 0)) / 1e9 if self.frames else 0.0

    def per_second(self, job: str) -> float:
        """Finished runs of a job per second of the session."""
        return self.runs[job] / self.seconds if self.seconds > 0 else 0.0

    def gpu_share(self) -> dict[str, float]:
        """Share of the session in which the GPU worked for each tenant: render, train, infer."""
        total_ms = 1e3 * self.seconds
        return {name: ms / total_ms if total_ms > 0 else 0.0 for name, ms in self.gpu_ms.items()}
