"""The XR driver protocol: what the frame loop asks of a headset, real or simulated.

Names and call order follow OpenXR 1.1: wait, begin, locate, end. Times are nanoseconds on the
clock of `time.perf_counter_ns`. Space is right-handed with +y up and -z ahead; metres, radians.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import wgpu

    from app.preview.actions import Action
    from app.xr.hands import Hand
    from app.xr.presenter import Presented, Presenter
    from app.xr.visibility import VisibilityMask
    from engine.gpu import Gpu

Vec3 = tuple[float, float, float]
Quat = tuple[float, float, float, float]


@dataclass(frozen=True)
class Pose:
    """Position in metres and orientation as a unit quaternion (x, y, z, w)."""

    position: Vec3
    orientation: Quat


@dataclass(frozen=True)
class Fov:
    """Half-angles in radians, as in XrFovf: `left` and `down` are negative."""

    left: float
    right: float
    up: float
    down: float


@dataclass(frozen=True)
class View:
    """One eye: its pose in the reference space and its field of view."""

    pose: Pose
    fov: Fov


@dataclass(frozen=True)
class FrameTiming:
    """What `wait_frame` promises: the frame to draw now and when it will be shown.

    `due_ns` is when its eye images must be complete for that. While `should_render` is false
    nobody sees the application: the frame is begun and ended, but nothing is drawn.
    """

    frame_id: int
    predicted_display_ns: int
    period_ns: int
    should_render: bool
    due_ns: int


@dataclass(frozen=True)
class FrameResult:
    """What became of one rendered frame, known once the compositor has passed its vsync.

    A refresh shows the newest frame that has been handed over, has completed on the GPU and whose
    predicted refresh is not still to come; otherwise it repeats the image shown before (stale).
    Every frame handed over is either shown exactly once or *dropped*: overtaken by a newer frame
    before it was shown, so that it never reaches the display. A frame that was waited for but
    never handed over, or never completed, is dropped as well.

    `displayed_ns` is the refresh that first showed the frame; 0 when the frame was dropped.
    `missed` is the number of refreshes beyond the predicted one that passed until the frame, or
    the one that overtook it, was shown (0: on time; at least 1 for a dropped frame).
    `stale_run` is the number of consecutive refreshes just before that one which repeated an old
    image. It counts refreshes for which the application started no frame, too.
    """

    frame_id: int
    displayed_ns: int
    missed: int
    stale_run: int

    @property
    def dropped(self) -> bool:
        """Whether the frame never reached the display."""
        return self.displayed_ns == 0


class XrDriver(Protocol):
    """A headset. `openxr`, `simulated` and `headless` are equal implementations."""

    name: str
    view_size: tuple[int, int]
    """Width and height of one eye image, pixels; known once open."""

    def open(self) -> None:
        """Start the session, also anew after it was closed.

        Raises `XrError` when there is no headset or runtime.
        """

    def show(self, gpu: Gpu, eyes: wgpu.GPUTexture) -> None:
        """Name the texture with both eye images side by side; once after each `open`."""

    @property
    def presenter(self) -> Presenter | None:
        """What hands the images over; None when nobody needs them."""

    def new_visibility_masks(self) -> tuple[VisibilityMask | None, VisibilityMask | None] | None:
        """What the left and right eye cannot see (None: nothing is known to be hidden).

        Given once after `open`, and again when it has changed; None meanwhile.
        """

    def wait_frame(self, idle: Callable[[], None]) -> FrameTiming:
        """Block until the next frame should start; call `idle` repeatedly meanwhile."""

    def begin_frame(self) -> None:
        """Announce that rendering of the waited-for frame starts."""

    def locate_views(self, display_ns: int) -> tuple[View, View]:
        """Predict the left and right eye at `display_ns`."""

    def end_frame(self, frame_id: int) -> None:
        """Hand the frame over; its GPU work has been submitted."""

    def frame_completed(self, frame_id: int, completed_ns: int, *, exact: bool = True) -> None:
        """Tell when the GPU finished the eye images of a frame.

        With `exact` false it has only been seen at `completed_ns`, and when that really was will be
        told later: polling is late by up to some milliseconds, and a compositor would know.
        """

    def results(self) -> list[FrameResult]:
        """Take the outcomes that have become known since the last call, in frame order."""

    def presented(self) -> list[Presented]:
        """Take what handing over cost, of the frames ended since the last call."""

    def actions(self, chunks: int) -> list[Action]:
        """What the wearer's controllers asked for since the last call; `chunks` holds now."""

    def hands(self, display_ns: int) -> tuple[Hand, Hand]:
        """Left and right hand at `display_ns`."""

    def close(self) -> None:
        """End the session; safe to call twice."""


class XrError(Exception):
    """No usable headset or runtime; the message says what to do."""


class XrLost(XrError):  # noqa: N818
    """The runtime or its session went away: close the driver, open a new one when it is back."""


class XrEnded(XrError):  # noqa: N818
    """The wearer or the runtime ended the session: leave in good order."""
