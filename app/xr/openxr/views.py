"""The two views of the wearer, predicted by the runtime; the last valid ones where it cannot."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from app.scene.transforms import rotation, tangents
from app.xr.driver import Fov, Pose, View
from app.xr.openxr.binding import STEREO, checked, pose_of, told, xr
from app.xr.openxr.choices import EYE_LEVEL_M
from app.xr.openxr.session import XrSession

ORIENTATION_VALID, POSITION_VALID = 1, 2  # XrViewStateFlags

_FIRST_FOV = Fov(-math.pi / 4, math.pi / 4, math.pi / 4, -math.pi / 4)
FIRST_VIEW = View(Pose((0.0, EYE_LEVEL_M, 0.0), (0.0, 0.0, 0.0, 1.0)), _FIRST_FOV)
"""What an eye is taken to see before the runtime has said anything."""


class ViewLocator:
    """Locates the views of one session."""

    def __init__(self, session: XrSession) -> None:
        self._session = session
        self._state = xr.ViewState()
        self._views = (xr.View * 2)(xr.View(), xr.View())
        self._count = ctypes.c_uint32()
        self.last: tuple[View, View] = (FIRST_VIEW, FIRST_VIEW)
        """The views located last."""

    def locate(self, space: Any, xr_time: int) -> tuple[View, View]:
        """Left and right eye in `space` at a positive XrTime.

        An orientation, position or field of view that is not valid is replaced by the last one
        that was.
        """
        info = xr.ViewLocateInfo(STEREO, xr_time, space)
        with told("locating the views"):
            checked(
                xr.raw_functions.xrLocateViews(
                    self._session.handle,
                    info,
                    ctypes.byref(self._state),
                    2,
                    ctypes.byref(self._count),
                    self._views,
                )
            )
        flags = int(self._state._view_state_flags)
        left, right = (
            _merge(flags, found, last) for found, last in zip(self._views, self.last, strict=True)
        )
        self.last = (left, right)
        return self.last


def _merge(flags: int, found: Any, last: View) -> View:
    pose, fov = pose_of(found.pose), _fov(found.fov)
    turned = flags & ORIENTATION_VALID and _is_rotation(pose)
    moved = flags & POSITION_VALID and all(map(math.isfinite, pose.position))
    return View(
        Pose(
            pose.position if moved else last.pose.position,
            pose.orientation if turned else last.pose.orientation,
        ),
        fov if _is_drawable(fov) else last.fov,
    )


def _fov(fov: Any) -> Fov:
    return Fov(fov.angle_left, fov.angle_right, fov.angle_up, fov.angle_down)


def _is_rotation(pose: Pose) -> bool:
    try:
        rotation(pose.orientation)
    except ValueError:
        return False
    return True


def _is_drawable(fov: Fov) -> bool:
    try:
        tangents(fov)
    except ValueError:
        return False
    return True
