"""When runs of a job, a training step or an inference, end, and how long they took."""

from __future__ import annotations

from typing import NamedTuple

from app.telemetry.rows import ChunkRow


class RunEnd(NamedTuple):
    """A finished run: when it ended, and the time since its first chunk was submitted.

    `ms` is None when that chunk was not seen.
    """

    end_ns: int
    ms: float | None


class RunTimes:
    """Follows runs by their chunks, which must come in order of submission."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[int, int]] = {}  # job -> run, submit of its first chunk

    def add(self, row: ChunkRow) -> RunEnd | None:
        """Take the next chunk; the run that it ends, if it does and its end is known."""
        if row.index == 0:
            self._starts[row.job] = (row.job_id, row.submit_ns)
        ended_ns = row.ended_ns
        if row.index != row.of - 1 or ended_ns is None:
            return None
        run, submit_ns = self._starts.get(row.job, (None, 0))
        return RunEnd(ended_ns, (ended_ns - submit_ns) / 1e6 if run == row.job_id else None)
