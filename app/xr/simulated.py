"""A simulated headset: a compositor clock with fixed vsyncs that says what the wearer saw.

Time line of a frame predicted for vsync n (times before that vsync):

    period + COMPOSITOR_LEAD_NS   wait_frame returns: the application may start
    COMPOSITOR_LEAD_NS            latch: eye images complete by now are shown at the vsync
    0                             the image lights up; `predicted_display_ns`

so an application has exactly one period from waking to completed eye images. Nothing here touches
a GPU: the caller tells when frames complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from app.xr.compositor import (
    COMPOSITOR_LEAD_NS,
    Compositor,
    CompositorStats,
    DisplayedFrame,
)
from app.xr.driver import FrameResult, FrameTiming, View
from app.xr.hands import Hand
from app.xr.head_motion import scripted_views

if TYPE_CHECKING:
    import wgpu

    from app.preview.actions import Action
    from app.xr.presenter import Presented, Presenter
    from app.xr.visibility import VisibilityMask
    from engine.gpu import Gpu

LATEST_START = 0.75
"""A frame may start this share of a period after its wake-up; later, the next vsync is taken."""

MAX_UNCOMPLETED = 2
"""Frames that may be on the GPU at once; `wait_frame` holds the application back beyond that."""

THROTTLE_LIMIT_NS = 5_000_000_000
"""After holding back for so long the driver gives the uncompleted frames up and goes on."""

IDLE_EVERY_NS = 200_000
PRECISE_NS = 200_000  # sleeps end late by up to this; the rest of a wait is spun


class Clock(Protocol):
    """A time source; tests replace it."""

    def now_ns(self) -> int:
        """Nanoseconds on the clock of `time.perf_counter_ns`."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep about that long; 0 only yields to other threads."""


class SystemClock:
    """The real clock."""

    def now_ns(self) -> int:
        """Nanoseconds on the clock of `time.perf_counter_ns`."""
        return time.perf_counter_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep about that long; 0 only yields to other threads."""
        time.sleep(duration_ns * 1e-9)


class SimulatedDriver:
    """An `XrDriver` without a headset. Use from one thread.

    `hz`: refresh rate. `view_size`: width and height of one eye image, pixels. `visible`: whether
    frames are to be rendered; it may be changed between frames.
    Raises `ValueError` for a rate outside 1 to 1000 Hz or an empty view.
    """

    name = "simulated"

    def __init__(
        self,
        hz: float = 90.0,
        view_size: tuple[int, int] = (720, 720),
        *,
        visible: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if not 1.0 <= hz <= 1000.0:
            raise ValueError(f"the refresh rate must be 1 to 1000 Hz, not {hz}")
        if min(view_size) < 1:
            raise ValueError(f"the view size must be positive, not {view_size}")
        self.view_size, self.visible = view_size, visible
        self.period_ns = round(1e9 / hz)
        self.throttle_timeouts = 0
        """How often uncompleted frames were given up after `THROTTLE_LIMIT_NS`."""
        self._clock: Clock = clock or SystemClock()
        self._compositor = Compositor(0, self.period_ns)
        self._is_open = False
        self._last_id = 0
        self._last_vsync = -1
        self._current: DisplayedFrame | None = None  # waited for, not yet handed over
        self._begun = self._hidden = False

    def open(self) -> None:
        """Start the session: vsync 0 is now."""
        self._compositor = Compositor(self._clock.now_ns(), self.period_ns)
        self._last_vsync = -1
        self._is_open = True

    @property
    def presenter(self) -> Presenter | None:
        """Nobody needs the images."""
        return None

    def show(self, gpu: Gpu, eyes: wgpu.GPUTexture) -> None:
        """Nobody looks."""

    def new_visibility_masks(self) -> tuple[VisibilityMask | None, VisibilityMask | None] | None:
        """There is no lens: every pixel is visible."""
        return None

    def presented(self) -> list[Presented]:
        """Nothing is handed over."""
        return []

    def actions(self, chunks: int) -> list[Action]:
        """There are no controllers."""
        return []

    def hands(self, display_ns: int) -> tuple[Hand, Hand]:
        """No hand is tracked."""
        return Hand(), Hand()

    def wait_frame(self, idle: Callable[[], None]) -> FrameTiming:
        """Block until the next frame should start; call `idle` about every 0.2 ms meanwhile.

        No vsync is promised twice. A late application gets the next vsync it can still meet.
        While `MAX_UNCOMPLETED` frames are on the GPU no further one is started. `idle` is called
        at least once, and may block. Raises `RuntimeError` when the driver is not open.
        """
        if not self._is_open:
            raise RuntimeError("the simulated headset is not open: call open() first")
        self._discard_current()
        idle()
        self._throttle(idle)
        vsync = self._next_vsync()
        self._idle_until(self._wake_ns(vsync), idle)
        if self._next_vsync() != vsync:
            # `idle` blocked past the frame. Not called again: a slow one could do so for ever.
            vsync = self._next_vsync()
            self._sleep_until(self._wake_ns(vsync))
        self._last_vsync = vsync
        self._last_id += 1
        self._current = DisplayedFrame(self._last_id, vsync, self.visible, resumes=self._hidden)
        display_ns = self._compositor.vsync_ns(vsync)
        return FrameTiming(
            frame_id=self._last_id,
            predicted_display_ns=display_ns,
            period_ns=self.period_ns,
            should_render=self._current.rendered,
            due_ns=display_ns - COMPOSITOR_LEAD_NS,
        )

    def begin_frame(self) -> None:
        """Announce that rendering starts. Raises `RuntimeError` without a waited-for frame."""
        if self._current is None:
            raise RuntimeError("begin_frame without wait_frame")
        self._begun = True

    def locate_views(self, display_ns: int) -> tuple[View, View]:
        """Left and right eye at `display_ns`: a smooth function of the time since `open`."""
        return scripted_views((display_ns - self._compositor.epoch_ns) * 1e-9)

    def end_frame(self, frame_id: int) -> None:
        """Hand the begun frame over. Raises `RuntimeError` for any other frame.

        A frame that was not to be rendered has no outcome.
        """
        frame = self._current
        if frame is None or frame.id != frame_id or not self._begun:
            raise RuntimeError(f"end_frame({frame_id}), but that frame has not begun")
        self._current, self._begun, self._hidden = None, False, not frame.rendered
        if self._hidden:
            return
        frame.ended_ns = self._clock.now_ns()
        self._compositor.pending.append(frame)

    def frame_completed(self, frame_id: int, completed_ns: int, *, exact: bool = True) -> None:
        """Tell when the eye images were ready; may come before `end_frame`, or after the vsync.

        A frame that was only seen complete (`exact` false) no longer holds `wait_frame` back, but
        its fate is decided when the exact time is told.

        The frame is shown at the first vsync at least `COMPOSITOR_LEAD_NS` after it was both
        completed and handed over, not before its predicted one, and never after a newer frame.
        Raises `ValueError` for a frame that was never waited for.
        """
        if not 1 <= frame_id <= self._last_id:
            raise ValueError(f"frame {frame_id} was never waited for")
        for frame in (*self._compositor.pending, *([self._current] if self._current else ())):
            if frame.id == frame_id and frame.completed_ns is None:
                frame.seen = True
                frame.completed_ns = completed_ns if exact else None

    def results(self) -> list[FrameResult]:
        """Take the outcomes that have become known since the last call, in frame order."""
        return self._compositor.results(self._clock.now_ns())

    def stats(self) -> CompositorStats:
        """The account so far."""
        return self._compositor.stats(self._clock.now_ns())

    def close(self) -> None:
        """End the session; safe to call twice. Results and statistics stay readable."""
        self._is_open = False

    # -- pacing --

    def _wake_ns(self, vsync: int) -> int:
        return self._compositor.vsync_ns(vsync - 1) - COMPOSITOR_LEAD_NS

    def _next_vsync(self) -> int:
        """The next vsync not promised yet that a frame starting now can meet."""
        needed_ns = COMPOSITOR_LEAD_NS + round((1.0 - LATEST_START) * self.period_ns)
        earliest = self._compositor.first_vsync_from(self._clock.now_ns() + needed_ns)
        return max(self._last_vsync + 1, earliest)

    def _idle_until(self, until_ns: int, idle: Callable[[], None]) -> None:
        while until_ns - self._clock.now_ns() > PRECISE_NS:
            idle()
            left_ns = until_ns - PRECISE_NS - self._clock.now_ns()
            self._clock.sleep_ns(max(0, min(IDLE_EVERY_NS, left_ns)))
        self._sleep_until(until_ns)

    def _sleep_until(self, until_ns: int) -> None:
        left_ns = until_ns - PRECISE_NS - self._clock.now_ns()
        if left_ns > 0:
            self._clock.sleep_ns(left_ns)
        while self._clock.now_ns() < until_ns:
            self._clock.sleep_ns(0)

    def _throttle(self, idle: Callable[[], None]) -> None:
        give_up_ns = self._clock.now_ns() + THROTTLE_LIMIT_NS
        while sum(frame.uncompleted for frame in self._compositor.pending) >= MAX_UNCOMPLETED:
            if self._clock.now_ns() >= give_up_ns:
                self.throttle_timeouts += 1
                for frame in self._compositor.pending:
                    frame.lost = frame.uncompleted
                return
            self._clock.sleep_ns(IDLE_EVERY_NS)
            idle()

    def _discard_current(self) -> None:
        """A frame that was waited for but not ended is discarded, as OpenXR does."""
        if self._current is not None:
            self._current.lost = True
            self._compositor.pending.append(self._current)
            self._current, self._begun = None, False
