"""The figures of runs, from their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from app.report.text import chunks
from app.report.timeline import Second, WorstSecond
from app.telemetry.folder import RunFolder
from app.telemetry.statistics import Statistics
from app.telemetry.summary import percentiles

UNNOTICED_PER_1000 = 1.0
"""Missed refreshes of 1000 that a wearer is taken not to notice: the project's goal."""


@dataclass(frozen=True)
class RunFigures:
    """What a run's rows add up to, and its worst second."""

    folder: RunFolder
    statistics: Statistics
    worst: Second | None

    @classmethod
    def read(cls, folder: RunFolder) -> RunFigures:
        """Read all rows once. Raises `TelemetryError` for a damaged one."""
        statistics, worst = Statistics(), WorstSecond()
        for frame in folder.frames():
            statistics.add_frame(frame)
            worst.add(frame)
        for chunk in folder.chunks():
            statistics.add_chunk(chunk)
        for figure in folder.quality():
            statistics.add_quality(figure)
        return cls(folder, statistics, worst.found(folder))

    @property
    def setting(self) -> str:
        """Chunks, bound, policy, jobs and rate in words, as far as the record tells."""
        options, hz = self.folder.options, self.folder.hz
        words = {
            "chunks": chunks(options.get("chunks")),
            "in_flight": f"{options.get('in_flight')} in flight",
            "policy": f"{options.get('policy')} policy",
            "job": f"job {options.get('job')}",
        }
        known = [text for key, text in words.items() if key in options]
        return ", ".join([*known, *([f"{hz:g} Hz"] if hz else [])]) or "unknown setting"

    @property
    def missed_per_1000(self) -> float | None:
        """Missed refreshes of 1000; None when nothing was shown."""
        return self.statistics.missed_per_1000 if self.statistics.vsyncs else None

    @property
    def stamped(self) -> bool:
        """Whether GPU times are measured ones."""
        return bool(self.folder.clock)

    def latency(self, job: str) -> dict[str, float | None]:
        """p50, p95, p99 and max of a job's runs, ms."""
        return percentiles(self.statistics.run_ms[job])


def pooled(runs: Iterable[RunFigures]) -> np.ndarray:
    """Frame times of several runs together, ms, sorted: float64 [frames]."""
    return np.sort(np.concatenate([np.empty(0), *(run.statistics.frame_ms for run in runs)]))
