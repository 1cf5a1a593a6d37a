"""GPU times of single passes, brought to the host as delayed readbacks.

Each pass is timed by a span, and about once a frame any encoder takes the recorded ones along:

    span = timer.span()  # or None
    session.encode(encoder, first, last, span.writes)
    gpu.submit(encoder)
    span.recorded()

    if timer.record(other):
        timer.submitted(gpu.submit(other))
    for number, begin_ns, end_ns in timer.take():
        ...
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.gpu import Gpu
from engine.queries import MOST_QUERIES, RESOLVE_QUERIES, TimestampQueries, timestamps_available
from engine.readback import Readback

if TYPE_CHECKING:
    import wgpu

PAGE_SPANS = RESOLVE_QUERIES
"""A page begins where a resolve may."""
PAGES = MOST_QUERIES // (2 * PAGE_SPANS)


@dataclass(slots=True)
class Span:
    """Begin and end of one pass: `writes` is the pass's `timestamp_writes`."""

    number: int
    writes: dict[str, Any]
    is_recorded: bool = False

    def recorded(self) -> None:
        """The pass is on the queue, or stands earlier in the encoder that `record` gets next."""
        self.is_recorded = True


@dataclass(slots=True, eq=False)
class _Page:
    """Neighbouring queries that are resolved and read together."""

    first: int
    writes: list[dict[str, Any]]
    readback: Readback
    spans: list[Span] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.spans) == len(self.writes)

    @property
    def begun(self) -> bool:
        return any(span.is_recorded for span in self.spans)


class GpuTimer:
    """Times passes on the GPU's own clock; creates nothing after its construction.

    Spans are handed out page by page, and a page is resolved at the first `record` that finds a
    recorded span in it. A span that has not been recorded by then is lost: whoever reserves one
    submits its pass, or gives it up, before the next `record`.
    """

    def __init__(self, gpu: Gpu, pages: int = PAGES) -> None:
        """Room for `pages` times PAGE_SPANS spans in flight."""
        self.available = timestamps_available(gpu)
        self.lost = 0
        """Spans refused or never timed."""
        self._count = 0
        self._free: deque[_Page] = deque()
        self._open: list[_Page] = []
        self._closing: list[_Page] = []
        self._under_way: deque[_Page] = deque()
        if not self.available:
            return
        size = 2 * PAGE_SPANS
        self._queries = TimestampQueries(gpu, pages * size)
        for first in range(0, pages * size, size):
            writes = [self._queries.writes(query) for query in range(first, first + size, 2)]
            self._free.append(_Page(first, writes, self._queries.readback(size)))

    def span(self) -> Span | None:
        """Reserve the queries of one pass; None when no slot is free."""
        if not self.available:
            return None
        if not self._open or self._open[-1].full:
            if not self._free:
                self.lost += 1
                return None
            self._open.append(self._free.popleft())
        page = self._open[-1]
        self._count += 1
        span = Span(self._count, page.writes[len(page.spans)])
        page.spans.append(span)
        return span

    def record(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """Bring home the spans recorded so far, at the end of this encoder; False: none is due.

        When True, name the encoder's submission with `submitted`. An encoder that is dropped
        instead takes its spans with it.
        """
        for page in self._closing:
            self._release(page, lost=sum(span.is_recorded for span in page.spans))
        due = [page for page in self._open if page.begun or page.full]
        self._open = [page for page in self._open if page not in due]
        self._closing = [page for page in due if page.begun]
        for page in due:
            given_up = [span for span in page.spans if not span.is_recorded]
            self.lost += len(given_up)
            if not page.begun:
                self._release(page)
                continue
            for span in given_up:
                # Its queries are resolved with the page's and must have been written.
                encoder.begin_compute_pass(timestamp_writes=span.writes).end()
            self._queries.resolve(encoder, page.first, 2 * len(page.spans), page.readback)
        return bool(self._closing)

    def submitted(self, serial: int) -> None:
        """The encoder given to `record` went out with this submission."""
        for page in self._closing:
            page.readback.arm(serial)
        self._under_way.extend(self._closing)
        self._closing = []

    def take(self) -> list[tuple[int, int, int]]:
        """(span number, begin, end) in GPU nanoseconds that have arrived, in order of number.

        Never blocks. A span whose end lies before its begin, as when the clock wraps, is lost.
        """
        arrived: list[tuple[int, int, int]] = []
        while self._under_way:
            page = self._under_way[0]
            data = page.readback.take()
            if data is None:
                break
            self._under_way.popleft()
            stamps = self._queries.nanoseconds(data, 2 * len(page.spans))
            for span, begin, end in zip(page.spans, stamps[::2], stamps[1::2], strict=True):
                if span.is_recorded and begin <= end:
                    arrived.append((span.number, begin, end))
                elif span.is_recorded:
                    self.lost += 1
            self._release(page)
        return arrived

    def _release(self, page: _Page, lost: int = 0) -> None:
        page.spans = []
        self.lost += lost
        self._free.append(page)
