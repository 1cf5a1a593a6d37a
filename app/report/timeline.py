"""The second of a run in which most refreshes were missed, and what the GPU did in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from app.telemetry.folder import RunFolder
from app.telemetry.rows import ChunkRow, FrameRow

SECOND_NS = 1_000_000_000
LEAD_NS = 100_000_000
"""Shown ahead of the first late image: what led to it."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Second:
    """Which second of which run, and why: the refreshes missed, or the longest frame."""

    folder: RunFolder
    start_ns: int
    missed: int
    longest_ms: float


class WorstSecond:
    """Finds the second with most missed refreshes, else the longest frame, in bounded memory."""

    def __init__(self) -> None:
        self._window: deque[tuple[int, int]] = deque()  # when promised, refreshes missed
        self._missed = self._most = 0
        self._most_ns = self._longest_ns = 0
        self._longest_ms = 0.0
        self._first_ns: int | None = None
        self._last_ns = 0

    def add(self, frame: FrameRow) -> None:
        """Take the next frame."""
        at_ns = frame.predicted_display_ns
        self._first_ns = at_ns if self._first_ns is None else self._first_ns
        self._last_ns = at_ns
        if frame.frame_ms is not None and frame.frame_ms > self._longest_ms:
            self._longest_ms, self._longest_ns = frame.frame_ms, at_ns
        if frame.missed_refreshes:
            self._add_missed(at_ns, frame.missed_refreshes)

    def _add_missed(self, at_ns: int, missed: int) -> None:
        self._window.append((at_ns, missed))
        self._missed += missed
        while self._window[0][0] < at_ns - SECOND_NS + 2 * LEAD_NS:
            self._missed -= self._window.popleft()[1]
        if self._missed > self._most:
            self._most, self._most_ns = self._missed, self._window[0][0]

    def found(self, folder: RunFolder) -> Second | None:
        """The worst second of what was added; None without frames."""
        if self._first_ns is None:
            return None
        worst_ns = self._most_ns if self._most else self._longest_ns or self._first_ns
        start_ns = min(worst_ns - LEAD_NS, self._last_ns - SECOND_NS + LEAD_NS)
        start_ns = max(start_ns, self._first_ns - LEAD_NS)
        return Second(folder, start_ns, self._most, self._longest_ms)


@dataclass
class Timeline:
    """Spans (begin, end) and moments, ns, of what happened in one second.

    `observed`: without GPU stamps, spans are from submission to observed completion.
    """

    second: Second
    eyes: list[Span] = field(default_factory=list)
    late: list[Span] = field(default_factory=list)
    """Eye images that came late; they are in `eyes` as well."""
    chunks: dict[str, list[Span]] = field(default_factory=dict)
    refreshes: list[int] = field(default_factory=list)
    """Refreshes that showed a new frame."""
    stale: list[int] = field(default_factory=list)
    """Refreshes that repeated an old one."""
    observed: bool = False

    @classmethod
    def read(cls, second: Second) -> Timeline:
        """Read the run's rows again for what lies in the second."""
        timeline, folder = cls(second), second.folder
        period_ns = round(1e9 / folder.hz) if folder.hz else 0
        for frame in folder.frames():
            timeline._take_frame(frame, period_ns)
        for chunk in folder.chunks():
            timeline._take_chunk(chunk)
        return timeline

    def _take_frame(self, frame: FrameRow, period_ns: int) -> None:
        stamps = frame.eye_begin_ns, frame.eye_end_ns, frame.submit_ns, frame.gpu_done_ns
        spans = self._spans(*stamps)
        self.eyes += spans
        self.late += spans if frame.missed else []
        if frame.displayed_ns is None:
            return
        since_ns = frame.displayed_ns - self.second.start_ns
        if 0 <= since_ns < SECOND_NS:
            self.refreshes.append(frame.displayed_ns)
        if period_ns:
            first = max(1, (since_ns - SECOND_NS) // period_ns + 1)
            last = min(frame.stale_run or 0, since_ns // period_ns)
            self.stale += [frame.displayed_ns - n * period_ns for n in range(first, last + 1)]

    def _take_chunk(self, chunk: ChunkRow) -> None:
        stamps = chunk.begin_ns, chunk.end_ns, chunk.submit_ns, chunk.done_ns
        self.chunks.setdefault(chunk.job, []).extend(self._spans(*stamps))

    def _spans(
        self,
        begin_ns: int | None,
        end_ns: int | None,
        submit_ns: int | None,
        done_ns: int | None,
    ) -> list[Span]:
        """Time on the GPU, or what is known of it, as one span; none outside the second."""
        stamped = begin_ns is not None and end_ns is not None
        begin_ns, end_ns = (begin_ns, end_ns) if stamped else (submit_ns, done_ns)
        if begin_ns is None or end_ns is None:
            return []
        if end_ns < self.second.start_ns or begin_ns >= self.second.start_ns + SECOND_NS:
            return []
        self.observed |= not stamped
        return [(begin_ns, end_ns)]
