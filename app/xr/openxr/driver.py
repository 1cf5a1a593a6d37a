"""The `openxr` driver: a headset behind any OpenXR 1.0 or 1.1 runtime.

Time line of a frame, all on the calling thread but xrWaitFrame:

    wait_frame     xrWaitFrame in a thread; `idle` meanwhile. The frame before is ended here:
                   as soon as its image has arrived, at the latest when it is due or the next one
                   may start. So nothing ever blocks on the renderer's queue.
    begin_frame    xrBeginFrame
    locate_views   xrLocateViews, right before the eyes are submitted
    end_frame      only notes that the eyes are on their way
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import wgpu

from app.preview.actions import Action
from app.xr.driver import FrameResult, FrameTiming, View, XrError
from app.xr.hands import Hand
from app.xr.openxr.frames import Rendered, Waited
from app.xr.openxr.headset import Headset
from app.xr.openxr.mask import visibility_mask
from app.xr.openxr.outcomes import Outcomes
from app.xr.openxr.presenters import make_presenter
from app.xr.openxr.wearer import Wearer
from app.xr.openxr.xr_time import is_usable
from app.xr.presenter import Presented, Presenter, PresenterChoice
from app.xr.visibility import VisibilityMask
from engine.gpu import Gpu

COMPOSITOR_LEAD_NS = 3_000_000
"""What the compositor is taken to need between the last hand-over and the display."""

PAUSE_NS = 11_111_111
"""Length of the frames that pass while the session does not run and nobody sees them."""

IDLE_EVERY_S = 0.000_15
ANSWER_LIMIT_S = 30.0
MOST_INVALID = 1000
"""So many unusable display times in a row are an error."""

MOST_PRESENTED = 1024
"""Of older frames, `presented` tells nothing any more."""


@dataclass
class _Frame:
    timing: FrameTiming
    waited: Waited | None  # None: the session does not run
    begun: bool = False
    handed: bool = False
    hold_until_ns: int = 0


class OpenXrDriver:
    """An `XrDriver` on the active runtime. Use from one thread.

    `view_size` asks for eye images of that size, pixels; None: the recommended size times
    `render_scale`. `hz` asks for the nearest refresh rate the
    display offers. `patience_ms` bounds how long after `end_frame` a frame is held back for its own
    image (None: until it is due; 0: never, so that each frame shows the image before). `presenter`
    is how images reach the runtime, see `presenters`. `debug` sends the runtime's messages to the
    log.

    After `open`, `show` makes the presenter; without one the wearer sees nothing.
    """

    name = "openxr"

    def __init__(
        self,
        *,
        view_size: tuple[int, int] | None = None,
        render_scale: float = 1.0,
        hz: float | None = None,
        patience_ms: float | None = None,
        presenter: PresenterChoice = "auto",
        debug: bool = False,
    ) -> None:
        self.view_size = view_size or (0, 0)
        self.invalid_times = 0
        """Frames skipped because the runtime predicted no usable display time."""
        self._wanted_size, self._scale, self._hz = view_size, render_scale, hz
        self._debug, self._choice = debug, presenter
        self._patience_ns = None if patience_ms is None else round(patience_ms * 1e6)
        self._headset: Headset | None = None
        self._states: list[str] = []
        self._presenter: Presenter | None = None
        self._host_bytes = 0
        self._frame: _Frame | None = None
        self._last_id = 0
        self._last_period_ns = PAUSE_NS
        self._rendered: dict[int, Rendered] = {}
        self._presented: deque[Presented] = deque(maxlen=MOST_PRESENTED)
        self._outcomes = Outcomes()

    # -- session --

    def open(self) -> None:
        """Start the session: `view_size` and `headset` are known afterwards.

        Raises `XrError` when there is no runtime or no headset, or it offers too little.
        """
        self._headset = Headset(
            view_size=self._wanted_size,
            render_scale=self._scale,
            hz=self._hz,
            debug=self._debug,
        )
        self._states = self._headset.session.life.states
        self.view_size = self._headset.view_size

    @property
    def headset(self) -> Headset:
        """The session's parts. Raises `RuntimeError` when the driver is not open."""
        if self._headset is None:
            raise RuntimeError("the headset is not open: call open() first")
        return self._headset

    @property
    def wearer(self) -> Wearer:
        """Head, hands and buttons. Raises `RuntimeError` when the driver is not open."""
        return self.headset.wearer

    def show(self, gpu: Gpu, eyes: wgpu.GPUTexture) -> None:
        """Present `eyes` (rgba8unorm-srgb, both side by side).

        Waits for `gpu` once. Raises `XrError` when the texture does not fit the swapchain.
        """
        headset = self.headset
        self.present_with(
            make_presenter(self._choice, gpu, eyes, headset.vulkan, headset.swapchain)
        )

    def present_with(self, presenter: Presenter) -> None:
        """Name the presenter of this session's swapchain; it is closed with the driver."""
        self._presenter, self._host_bytes = presenter, presenter.host_bytes

    @property
    def presenter(self) -> Presenter | None:
        """What hands the images over; None before `show`."""
        return self._presenter

    def actions(self, chunks: int) -> list[Action]:
        """What the controllers asked for since the last call; `chunks` holds now."""
        return self.wearer.actions(chunks)

    def hands(self, display_ns: int) -> tuple[Hand, Hand]:
        """Left and right hand at `display_ns`, as of the last `actions`."""
        return self.wearer.hands(display_ns)

    @property
    def states(self) -> list[str]:
        """Names of the session's states so far, in order; still readable after `close`."""
        return list(self._states)

    def new_visibility_masks(self) -> tuple[VisibilityMask | None, VisibilityMask | None] | None:
        """What the eyes cannot see, after `open` and whenever the runtime says that it changed."""
        headset = self.headset
        if not headset.session.masks_changed:
            return None
        headset.session.masks_changed = False
        left, right = (visibility_mask(headset.instance, headset.session, eye) for eye in (0, 1))
        return left, right

    # -- frames --

    def wait_frame(self, idle: Callable[[], None]) -> FrameTiming:
        """Block until the next frame should start; call `idle` about every 0.2 ms meanwhile.

        While the session does not run, frames that are not to be rendered pass about every 11 ms.
        Raises `XrEnded` when the session is over, `XrLost` when the runtime is gone, `XrError`
        when it does not answer or never lets the session begin.
        """
        headset = self.headset
        idle()
        headset.session.poll()
        if not headset.session.life.running:
            return self._pause(idle)
        self._discard_unfinished()
        waited = self._wait(idle)
        display_ns = headset.wearer.clock.to_ns(waited.display_time)
        period_ns = waited.period_ns if waited.period_ns > 0 else self._last_period_ns
        self._last_period_ns = period_ns
        latch_ns = display_ns - min(COMPOSITOR_LEAD_NS, period_ns // 2)
        cost_ns = self._presenter.cost_ns if self._presenter is not None else 0
        timing = FrameTiming(
            frame_id=self._next_id(),
            predicted_display_ns=display_ns,
            period_ns=period_ns,
            should_render=waited.should_render,
            due_ns=latch_ns - min(cost_ns, period_ns // 2),
        )
        if waited.should_render:
            self._outcomes.waited(timing.frame_id, display_ns, latch_ns, period_ns)
        else:
            self._outcomes.hidden()
        self._frame = _Frame(timing, waited)
        return timing

    def begin_frame(self) -> None:
        """Announce that rendering starts. Raises `RuntimeError` without a waited-for frame."""
        if self._frame is None:
            raise RuntimeError("begin_frame without wait_frame")
        if self._frame.waited is not None:
            self.headset.frames.begin()
        self._frame.begun = True

    def locate_views(self, display_ns: int) -> tuple[View, View]:
        """Left and right eye at `display_ns`; the last known ones while they are not tracked."""
        wearer = self.headset.wearer
        views = wearer.views(display_ns)
        if self._frame is not None and self._presenter is not None:
            self._rendered[self._frame.timing.frame_id] = Rendered(views, wearer.space)
        return views

    def end_frame(self, frame_id: int) -> None:
        """Note that the frame's eyes were submitted; it is ended while the next is waited for.

        Raises `RuntimeError` for a frame that has not begun.
        """
        frame = self._frame
        if frame is None or frame.timing.frame_id != frame_id or not frame.begun:
            raise RuntimeError(f"end_frame({frame_id}), but that frame has not begun")
        frame.handed = True
        frame.hold_until_ns = frame.timing.due_ns
        if self._patience_ns is not None:
            limit_ns = time.perf_counter_ns() + self._patience_ns
            frame.hold_until_ns = min(frame.hold_until_ns, limit_ns)

    def frame_completed(self, frame_id: int, completed_ns: int, *, exact: bool = True) -> None:
        """Nothing to do: the presenter sees the image arrive, and that is later."""

    def results(self) -> list[FrameResult]:
        """Take the outcomes that have become known, in frame order; see `outcomes`: derived."""
        return self._outcomes.take(time.perf_counter_ns())

    def presented(self) -> list[Presented]:
        """Take what the frames ended since the last call showed, in frame order."""
        taken = list(self._presented)
        self._presented.clear()
        return taken

    # -- inside --

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _wait(self, idle: Callable[[], None]) -> Waited:
        """The next frame with a usable display time; ends the one before meanwhile."""
        for _ in range(MOST_INVALID):
            waited = self._wait_once(idle)
            if is_usable(waited.display_time):
                return waited
            self.invalid_times += 1
            self.headset.frames.begin()  # never ended: the next begin discards it
        raise XrError(
            f"the OpenXR runtime predicted no usable display time {MOST_INVALID} times in a row: "
            "restart it"
        )

    def _wait_once(self, idle: Callable[[], None]) -> Waited:
        waiter = self.headset.frames.waiter
        waiter.request()
        give_up = time.monotonic() + ANSWER_LIMIT_S
        while (waited := waiter.answer(IDLE_EVERY_S)) is None:
            idle()
            if self._frame is not None and self._image_settled(self._frame):
                self._end(self._frame)
            if time.monotonic() > give_up:
                raise XrError(
                    f"the OpenXR runtime has not answered for {ANSWER_LIMIT_S:.0f} s: restart it"
                )
        if self._frame is not None:
            self._end(self._frame)
        return waited

    def _pause(self, idle: Callable[[], None]) -> FrameTiming:
        """A frame of a session that does not run: time passes, nobody looks."""
        self._frame = None  # xrEndSession has ended it
        self._outcomes.hidden()
        until_ns = time.perf_counter_ns() + PAUSE_NS
        while (now_ns := time.perf_counter_ns()) < until_ns:
            idle()
            time.sleep(IDLE_EVERY_S)
        display_ns = now_ns + PAUSE_NS
        timing = FrameTiming(self._next_id(), display_ns, PAUSE_NS, False, display_ns)
        self._frame = _Frame(timing, None)
        return timing

    def _image_settled(self, frame: _Frame) -> bool:
        """Whether there is nothing to hold the frame back for."""
        if self._presenter is None or not frame.timing.should_render:
            return True
        late = time.perf_counter_ns() >= frame.hold_until_ns
        return late or self._presenter.ready(frame.timing.frame_id)

    def _end(self, frame: _Frame) -> None:
        """End the frame with the newest image."""
        self._frame = None
        if frame.waited is None:
            return
        image_id = host_bytes = 0
        begin_ns = time.perf_counter_ns()
        if self._presenter is not None and frame.timing.should_render:
            image_id = self._presenter.present()
            host_bytes = self._presenter.host_bytes - self._host_bytes
            self._host_bytes += host_bytes
        self.headset.frames.end(frame.waited.display_time, self._rendered.get(image_id))
        ended_ns = time.perf_counter_ns()
        if frame.timing.should_render:
            self._outcomes.ended(frame.timing.frame_id, image_id, ended_ns)
            spent_ms = (ended_ns - begin_ns) / 1e6
            self._presented.append(Presented(frame.timing.frame_id, image_id, spent_ms, host_bytes))
        self._forget_before(image_id)

    def _forget_before(self, image_id: int) -> None:
        for old in [frame_id for frame_id in self._rendered if frame_id < image_id]:
            del self._rendered[old]

    def _discard_unfinished(self) -> None:
        """A frame that was waited for but not handed over shows the image before."""
        frame = self._frame
        if frame is None or frame.handed:
            return
        if frame.waited is not None and not frame.begun:
            self.headset.frames.begin()
        self._rendered.pop(frame.timing.frame_id, None)
        self._end(frame)

    def close(self) -> None:
        """End the session, waiting for its exit for a moment; safe to call twice."""
        headset, self._headset = self._headset, None
        if headset is None:
            return
        frame, self._frame = self._frame, None
        if not headset.frames.waiter.close():
            return  # a thread is still inside the runtime: destroying what it uses would crash
        try:
            if frame is not None and frame.begun and frame.waited is not None:
                headset.frames.end(frame.waited.display_time, None)
        except XrError:
            pass  # the runtime is gone
        if self._presenter is not None:
            self._presenter.close()
        headset.close()
