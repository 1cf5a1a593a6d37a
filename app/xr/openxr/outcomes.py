"""What became of each frame, derived: a real runtime does not tell.

Refreshes are numbered by predicted display times: a frame whose prediction lies n periods after the
one before was predicted n refreshes later. The image that a frame carries is shown at that frame's
refresh when the frame was ended by its latch time, else so many refreshes later as it was late.
From there on everything follows `FrameResult`: an image carried by a later frame than its own was
missed by the refreshes in between, one that no frame carried before a newer one was dropped, and
refreshes without a new image are stale. What the display really did may differ: a compositor may
latch later or earlier than assumed, and predictions are not measurements.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from app.xr.driver import FrameResult

MOST_OPEN = 256
"""Frames whose fate may be open at once; beyond that the oldest will never be shown."""


@dataclass(frozen=True, slots=True)
class _Frame:
    id: int
    refresh: int
    display_ns: int
    latch_ns: int
    period_ns: int


@dataclass(frozen=True, slots=True)
class _Shown:
    frame: _Frame  # whose image it is
    refresh: int
    display_ns: int


class Outcomes:
    """Tell it of each frame as it happens; take results whenever wanted. Times in ns."""

    def __init__(self) -> None:
        self._last: _Frame | None = None  # waited for
        self._frames: dict[int, _Frame] = {}  # whose end or image is still of interest
        self._open: deque[_Frame] = deque()  # without a result yet, in frame order
        self._candidate: _Shown | None = None  # on its way to the display
        self._shown_refresh: int | None = None
        self._results: list[FrameResult] = []

    def waited(self, frame_id: int, display_ns: int, latch_ns: int, period_ns: int) -> None:
        """A frame that will be rendered, predicted for `display_ns`, was waited for."""
        refresh = 0
        if self._last is not None:
            steps = round((display_ns - self._last.display_ns) / period_ns)
            refresh = self._last.refresh + max(0, steps)
        frame = _Frame(frame_id, refresh, display_ns, latch_ns, period_ns)
        self._last = self._frames[frame_id] = frame
        self._open.append(frame)
        if len(self._open) > MOST_OPEN:
            self._drop(self._open.popleft(), refresh)

    def ended(self, frame_id: int, image_id: int, ended_ns: int) -> None:
        """The frame was handed over with the image of `image_id` (0: none) at `ended_ns`."""
        carrier = self._frames.get(frame_id)
        if carrier is None or not any(frame.id == image_id for frame in self._open):
            return
        if self._candidate is not None and self._candidate.frame.id == image_id:
            return  # an old image, repeated
        late = max(0, -(-(ended_ns - carrier.latch_ns) // carrier.period_ns))
        previous, self._candidate = self._candidate, None
        # What is handed over later is not shown earlier, whatever a jittering clock says.
        if previous is not None:
            late = max(late, previous.refresh - carrier.refresh)
        elif self._shown_refresh is not None:
            late = max(late, self._shown_refresh + 1 - carrier.refresh)
        refresh, display_ns = carrier.refresh + late, carrier.display_ns + late * carrier.period_ns
        if previous is not None and previous.refresh < refresh:
            self._show(previous)
        # What is older and still open was overtaken.
        while self._open[0].id != image_id:
            self._drop(self._open.popleft(), refresh)
        self._candidate = _Shown(self._open[0], refresh, display_ns)

    def hidden(self) -> None:
        """The application is not shown any more: open frames are dropped, nothing is stale."""
        if self._candidate is not None:
            self._show(self._candidate)
            self._candidate = None
        while self._open:
            frame = self._open.popleft()
            self._drop(frame, frame.refresh)
        self._frames.clear()
        self._shown_refresh = self._last = None

    def take(self, now_ns: int) -> list[FrameResult]:
        """Results that have become known since the last call, in frame order."""
        shown = self._candidate
        if shown is not None and now_ns >= shown.display_ns:
            self._candidate = None
            self._show(shown)
        taken, self._results = self._results, []
        return taken

    def _show(self, shown: _Shown) -> None:
        self._open.popleft()
        frame = shown.frame
        stale = self._stale_before(shown.refresh)
        missed = shown.refresh - frame.refresh
        self._results.append(FrameResult(frame.id, shown.display_ns, missed, stale))
        self._shown_refresh = shown.refresh
        for old in [other for other in self._frames if other < frame.id]:
            del self._frames[old]

    def _drop(self, frame: _Frame, refresh: int) -> None:
        missed = max(1, refresh - frame.refresh)
        self._results.append(FrameResult(frame.id, 0, missed, self._stale_before(refresh)))

    def _stale_before(self, refresh: int) -> int:
        last = self._shown_refresh
        return 0 if last is None else max(0, refresh - last - 1)
