"""The world's reference space: the floor beneath the wearer, recentred on demand."""

from __future__ import annotations

from typing import Any

from app.xr.driver import Pose
from app.xr.openxr.binding import pose_of, told, xr, xr_pose
from app.xr.openxr.choices import choose_space
from app.xr.openxr.instance import quietly
from app.xr.openxr.recentre import level_pose
from app.xr.openxr.session import XrSession

POSE_VALID = 3  # XR_SPACE_LOCATION_ORIENTATION_VALID_BIT | POSITION_VALID_BIT


class WorldSpace:
    """LOCAL_FLOOR, else STAGE, else LOCAL with an assumed eye level; y = 0 is the floor."""

    def __init__(self, session: XrSession) -> None:
        self._session = session
        with told("asking for reference spaces"):
            offered = {int(kind) for kind in xr.enumerate_reference_spaces(session.handle)}
        kind, self._floor = choose_space(offered)
        self.kind = xr.ReferenceSpaceType(kind)
        self._base = self._create(self.kind, Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)))
        self._head = self._create(
            xr.ReferenceSpaceType.VIEW, Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        )
        self.handle: Any = self._create(
            self.kind, Pose((0.0, self._floor, 0.0), (0.0, 0.0, 0.0, 1.0))
        )
        """The space in which views and hands are located now."""
        # Images on their way were rendered in older ones, and name them when they are shown.
        self._all = [self._base, self._head, self.handle]

    def _create(self, kind: Any, pose: Pose) -> Any:
        with told("creating a reference space"):
            return xr.create_reference_space(
                self._session.handle, xr.ReferenceSpaceCreateInfo(kind, xr_pose(pose))
            )

    def recentre(self, xr_time: int) -> bool:
        """Put the world's origin beneath the head and its -z where it looks.

        False when the head cannot be located at `xr_time`: nothing has changed.
        """
        head = locate(self._head, self._base, xr_time)
        origin = level_pose(head, self._floor) if head is not None else None
        if origin is None:
            return False
        self.handle = self._create(self.kind, origin)
        self._all.append(self.handle)
        return True

    def close(self) -> None:
        """Destroy the spaces; safe to call twice."""
        for space in self._all:
            quietly(xr.destroy_space, space)
        self._all = []


def locate(space: Any, base: Any, xr_time: int) -> Pose | None:
    """The pose of a space in another at a positive XrTime; None while it is not tracked."""
    with told("locating a space"):
        location = xr.locate_space(space, base, xr_time)
    if int(location._location_flags) & POSE_VALID != POSE_VALID:
        return None
    return pose_of(location.pose)
