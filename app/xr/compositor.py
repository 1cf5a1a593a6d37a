"""What a display with fixed vsyncs shows of the frames that are handed over to it.

A refresh shows the newest frame that was complete and handed over `COMPOSITOR_LEAD_NS` before it
and whose own refresh is not still to come; else it repeats the image before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from app.xr.driver import FrameResult

COMPOSITOR_LEAD_NS = 1_500_000
"""What the compositor needs between taking the eye images and the vsync (distortion, scan-out)."""


@dataclass(frozen=True)
class CompositorStats:
    """What the display showed, from the first shown frame up to the latest shown one.

    `vsyncs` refreshes, each either `fresh` (a new frame) or `stale` (an old one repeated);
    `dropped` frames were overtaken before being shown (see `FrameResult`). Refreshes after the
    latest shown frame are counted once a further frame is shown.
    """

    vsyncs: int
    fresh: int
    stale: int
    longest_stale_run: int
    dropped: int


@dataclass(slots=True)
class DisplayedFrame:
    """A frame on its way to the display."""

    id: int
    vsync: int  # predicted
    rendered: bool = True
    resumes: bool = False  # the first one after frames that were not rendered
    ended_ns: int | None = None
    completed_ns: int | None = None
    seen: bool = False  # complete, but when is not told yet
    lost: bool = False  # never handed over, or given up: it will not be shown

    @property
    def uncompleted(self) -> bool:
        """Whether the GPU may still be at work on it."""
        return not self.seen and not self.lost


class Compositor:
    """Vsyncs of one display, every `period_ns` from `epoch_ns` on, and what they showed.

    Knows no clock: the caller tells what time it is.
    """

    def __init__(self, epoch_ns: int, period_ns: int) -> None:
        self.epoch_ns, self.period_ns = epoch_ns, period_ns
        self.pending: deque[DisplayedFrame] = deque()
        """Frames handed over whose fate is unknown, in frame order."""
        self._results: list[FrameResult] = []
        self._shown_vsync: int | None = None
        self._fresh = self._stale = self._longest_stale_run = self._dropped = 0

    def vsync_ns(self, vsync: int) -> int:
        """When a refresh lights up."""
        return self.epoch_ns + vsync * self.period_ns

    def first_vsync_from(self, ns: int) -> int:
        """The first refresh at or after a time."""
        return -((self.epoch_ns - ns) // self.period_ns)

    def results(self, now_ns: int) -> list[FrameResult]:
        """Take the outcomes that have become known since the last call, in frame order."""
        self._settle(now_ns)
        taken, self._results = self._results, []
        return taken

    def stats(self, now_ns: int) -> CompositorStats:
        """The account so far."""
        self._settle(now_ns)
        fresh, stale = self._fresh, self._stale
        return CompositorStats(fresh + stale, fresh, stale, self._longest_stale_run, self._dropped)

    def _settle(self, now_ns: int) -> None:
        """Decide every refresh that can be decided; the outcome does not depend on when."""
        while (shown := self._next_shown(now_ns)) is not None:
            self._show(*shown)

    def _next_shown(self, now_ns: int) -> tuple[int, DisplayedFrame] | None:
        """The next refresh that shows a new frame, with that frame; None while not yet known."""
        ready = [(self._ready_vsync(frame), frame) for frame in self.pending if not frame.lost]
        known = [(vsync, frame) for vsync, frame in ready if vsync is not None]
        if not known:
            return None
        vsync, frame = min(known, key=lambda entry: (entry[0], -entry[1].id))
        # Completions are told late: one not told yet may have been in time for this refresh.
        untold = any(
            other.completed_ns is None and not other.lost and other.vsync <= vsync
            for other in self.pending
        )
        if untold or now_ns < self.vsync_ns(vsync):
            return None
        return vsync, frame

    def _ready_vsync(self, frame: DisplayedFrame) -> int | None:
        if frame.completed_ns is None or frame.ended_ns is None:
            return None
        ready_ns = max(frame.completed_ns, frame.ended_ns)
        return max(frame.vsync, self.first_vsync_from(ready_ns + COMPOSITOR_LEAD_NS))

    def _show(self, vsync: int, frame: DisplayedFrame) -> None:
        passed = [self.pending.popleft() for _ in range(self.pending.index(frame) + 1)]
        if any(old.resumes for old in passed):
            self._shown_vsync = None  # refreshes of the hidden time are nobody's fault
        run = 0 if self._shown_vsync is None else vsync - self._shown_vsync - 1
        for old in passed[:-1]:
            self._results.append(FrameResult(old.id, 0, vsync - old.vsync, run))
            self._dropped += 1
        shown_ns = self.vsync_ns(vsync)
        self._results.append(FrameResult(frame.id, shown_ns, vsync - frame.vsync, run))
        self._shown_vsync = vsync
        self._fresh += 1
        self._stale += run
        self._longest_stale_run = max(self._longest_stale_run, run)
