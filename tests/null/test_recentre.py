import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scene.transforms import rotation
from app.xr.driver import Pose, Quat
from app.xr.openxr.recentre import level_pose


def turned(yaw: float, pitch: float = 0.0, roll: float = 0.0) -> Quat:
    """Roll about z, then pitch about x, then yaw about y."""
    x, y, z, w = 0.0, 0.0, math.sin(roll / 2), math.cos(roll / 2)
    for axis, angle in (((1, 0, 0), pitch), ((0, 1, 0), yaw)):
        a, b, c, d = *(math.sin(angle / 2) * part for part in axis), math.cos(angle / 2)
        x, y, z, w = (
            d * x + a * w + b * z - c * y,
            d * y - a * z + b * w + c * x,
            d * z + a * y - b * x + c * w,
            d * w - a * x - b * y - c * z,
        )
    return x, y, z, w


angle = st.floats(-3.1, 3.1)


@given(angle, st.floats(-1.4, 1.4), st.floats(-0.7, 0.7))
def test_keeps_the_heading_and_nothing_else(yaw: float, pitch: float, roll: float) -> None:
    found = level_pose(Pose((1.0, 1.7, -2.0), turned(yaw, pitch, roll)), -0.2)
    assert found is not None
    assert found.position == (1.0, -0.2, -2.0)
    turn = rotation(found.orientation)
    assert np.allclose(turn @ (0, 1, 0), (0, 1, 0), atol=1e-5)
    assert np.allclose(turn @ (0, 0, -1), (-math.sin(yaw), 0, -math.cos(yaw)), atol=1e-3)


@pytest.mark.parametrize("orientation", [turned(0.3, math.pi / 2), (0, 0, 0, 0), (math.nan,) * 4])
def test_no_heading(orientation: Quat) -> None:
    assert level_pose(Pose((0, 1.6, 0), orientation), 0.0) is None
