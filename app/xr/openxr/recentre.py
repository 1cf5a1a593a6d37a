"""Which way the wearer faces, level with the floor."""

from __future__ import annotations

import math

from app.scene.transforms import rotation
from app.xr.driver import Pose


def level_pose(head: Pose, floor_m: float) -> Pose | None:
    """The pose on the floor beneath the head that faces where the head does; -z is ahead.

    `floor_m` is the floor's height in the head's space. None when the head looks straight up or
    down, or its pose is no rotation.
    """
    try:
        ahead = -rotation(head.orientation)[:, 2]
    except ValueError:
        return None
    if math.hypot(ahead[0], ahead[2]) < 0.05:
        return None
    half = math.atan2(-ahead[0], -ahead[2]) / 2
    x, _, z = head.position
    return Pose((x, floor_m, z), (0.0, math.sin(half), 0.0, math.cos(half)))
