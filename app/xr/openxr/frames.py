"""The frames of a session: waited for in a thread, begun, and ended with a layer of images.

The order of OpenXR 1.1, 11: xrWaitFrame, xrBeginFrame, xrEndFrame. A frame is ended late, while the
next one is being waited for, so that its own image can still arrive.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from app.xr.driver import View, XrError
from app.xr.openxr.binding import STEREO, told, xr, xr_pose
from app.xr.openxr.choices import choose_blend_mode
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.session import XrSession
from app.xr.openxr.swapchain import EyeSwapchain
from app.xr.openxr.waiter import FrameWaiter


@dataclass(frozen=True)
class Rendered:
    """Where the eye images of one frame were seen from: views, and the XrSpace they are in."""

    views: tuple[View, View]
    space: Any


@dataclass(frozen=True)
class Waited:
    """What xrWaitFrame says: XrTime, nanoseconds, flag."""

    display_time: int
    period_ns: int
    should_render: bool


class FrameCalls:
    """The three calls, for one session and swapchain."""

    def __init__(self, instance: XrInstance, session: XrSession, swapchain: EyeSwapchain) -> None:
        self._session = session
        with told("asking for blend modes"):
            modes = xr.enumerate_environment_blend_modes(instance.handle, instance.system, STEREO)
        # Made once and rewritten: the binding's structures are cycles that only the garbage
        # collector frees, and that is off in the frame loop.
        self._views = (xr.CompositionLayerProjectionView * 2)(
            *(
                xr.CompositionLayerProjectionView(sub_image=swapchain.sub_image(eye))
                for eye in (0, 1)
            )
        )
        self._layer = xr.CompositionLayerProjection(views=self._views)
        header = ctypes.POINTER(xr.CompositionLayerBaseHeader)
        self._layers = (header * 1)(ctypes.cast(ctypes.pointer(self._layer), header))
        self._end_info = xr.FrameEndInfo(
            environment_blend_mode=xr.EnvironmentBlendMode(
                choose_blend_mode([int(mode) for mode in modes])
            ),
            layers=self._layers,
        )
        self.waiter: FrameWaiter[Waited] = FrameWaiter(self._wait)

    def _wait(self) -> Waited:
        with told("waiting for a frame"):
            state = xr.wait_frame(self._session.handle, xr.FrameWaitInfo())
        return Waited(
            int(state.predicted_display_time),
            int(state.predicted_display_period),
            bool(state.should_render),
        )

    def begin(self) -> None:
        """xrBeginFrame. A frame begun before and never ended is discarded, which is no error."""
        try:
            with told("beginning a frame"):
                xr.begin_frame(self._session.handle, xr.FrameBeginInfo())
        except XrError as error:
            if not isinstance(error.__cause__, xr.FrameDiscarded):
                raise

    def end(self, display_time: int, image: Rendered | None) -> None:
        """XrEndFrame, with what the swapchain shows as the only layer, or nothing at all."""
        if image is not None:
            self._layer.space = image.space
            for target, view in zip(self._views, image.views, strict=True):
                target.pose = xr_pose(view.pose)
                target.fov = xr.Fovf(view.fov.left, view.fov.right, view.fov.up, view.fov.down)
        self._end_info.display_time = display_time
        self._end_info.layer_count = 0 if image is None else 1
        with told("ending a frame"):
            xr.end_frame(self._session.handle, self._end_info)
