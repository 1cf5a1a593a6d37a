"""From submission to row: follows each chunk until its completion and GPU stamps are known."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, cast

from app.telemetry.rows import ChunkRow


@dataclass
class ChunkDraft:
    """A chunk on its way. `serial` names its submission, `span` its GPU stamps (None: no stamps).

    Stamps in ns on the clock of `time.perf_counter_ns`.
    """

    id: int
    job: str
    job_id: int
    index: int
    of: int
    dispatches: int
    frame_id: int
    in_flight: int
    reason: str
    predicted_ms: float | None
    submit_ns: int
    submit_ms: float
    serial: int
    span: int | None
    begin_ns: int | None = None
    end_ns: int | None = None
    done_ns: int | None = None
    gpu_ms: float | None = None

    @property
    def last(self) -> bool:
        """Whether the chunk ends its run."""
        return self.index == self.of - 1

    @property
    def known(self) -> bool:
        """Whether nothing about it can change any more."""
        return self.done_ns is not None and (self.span is None or self.end_ns is not None)

    def row(self) -> ChunkRow:
        """The finished row."""
        return ChunkRow(
            id=self.id,
            job=cast(Literal["train", "infer"], self.job),
            job_id=self.job_id,
            index=self.index,
            of=self.of,
            dispatches=self.dispatches,
            frame_id=self.frame_id,
            submit_ns=self.submit_ns,
            begin_ns=self.begin_ns,
            end_ns=self.end_ns,
            gpu_ms=self.gpu_ms,
            predicted_ms=self.predicted_ms,
            done_ns=self.done_ns,
            submit_ms=self.submit_ms,
            in_flight=self.in_flight,
            reason=self.reason,
        )


class ChunkLog:
    """Chunks in order of submission; each row is given once, when nothing about it can change."""

    def __init__(self) -> None:
        self._running: deque[ChunkDraft] = deque()  # not known to be complete
        self._drafts: deque[ChunkDraft] = deque()  # all that have no row yet
        self._last_done_ns = 0

    @property
    def in_flight(self) -> int:
        """Chunks submitted and not known to be complete."""
        return len(self._running)

    @property
    def newest_in_flight(self) -> int | None:
        """Id of the newest of those."""
        return self._running[-1].id if self._running else None

    def submitted(self, draft: ChunkDraft) -> None:
        """A chunk went to the queue."""
        self._running.append(draft)
        self._drafts.append(draft)

    def completed(self, serial: int, done_ns: int) -> ChunkDraft | None:
        """Note a completion; the chunk that the submission carried, if any."""
        if not self._running or self._running[0].serial != serial:
            self._last_done_ns = done_ns
            return None
        draft = self._running.popleft()
        draft.done_ns = done_ns
        if draft.span is None:
            # The GPU was free for it from the completion before, at the earliest.
            begun_ns = max(draft.submit_ns, self._last_done_ns)
            draft.gpu_ms = max(0, done_ns - begun_ns) / 1e6
        self._last_done_ns = done_ns
        return draft

    def stamped(self, span: int, begin_ns: int, end_ns: int) -> ChunkDraft | None:
        """Note GPU stamps; the chunk they belong to, if any."""
        for draft in self._drafts:
            if draft.span == span:
                draft.begin_ns, draft.end_ns = begin_ns, end_ns
                draft.gpu_ms = (end_ns - begin_ns) / 1e6
                return draft
        return None

    def stamps_passed(self, span: int) -> None:
        """Spans come in order: what is older than `span` and not stamped never will be."""
        for draft in self._drafts:
            if draft.span is not None and draft.span < span and draft.end_ns is None:
                draft.span = None

    def take(self) -> list[ChunkRow]:
        """The rows that have become known since the last call, in order."""
        rows = []
        while self._drafts and self._drafts[0].known:
            rows.append(self._drafts.popleft().row())
        return rows

    def finish(self) -> list[ChunkRow]:
        """The remaining rows, as they are."""
        rows = [draft.row() for draft in self._drafts]
        self._drafts.clear()
        return rows
