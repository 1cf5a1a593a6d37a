"""The scripted head: smooth, gentle, and with eyes where eyes are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.xr.head_motion import IPD_M, scripted_views


@given(st.floats(0.0, 36_000.0))
def test_eyes_are_one_ipd_apart_along_the_heads_right(seconds: float) -> None:
    left, right = scripted_views(seconds)
    assert math.dist(left.pose.position, right.pose.position) == pytest.approx(IPD_M)
    assert left.pose.orientation == right.pose.orientation
    assert math.hypot(*left.pose.orientation) == pytest.approx(1.0)
    assert left.pose.position[0] < right.pose.position[0]
    assert left.fov.left == -right.fov.right < -left.fov.right == right.fov.left < 0
    for view in (left, right):
        assert math.radians(40) < view.fov.up == -view.fov.down < math.radians(50)
        assert math.radians(40) < -view.fov.left < math.radians(50)


@given(st.floats(0.0, 36_000.0))
def test_the_head_stays_near_and_looks_ahead(seconds: float) -> None:
    view = scripted_views(seconds)[0]
    x, y, z = view.pose.position
    assert abs(x) < 0.08 and abs(y - 1.6) < 0.02 and abs(z) < 0.05
    qx, qy, qz, qw = view.pose.orientation
    ahead = (-2 * (qx * qz + qw * qy), -2 * (qy * qz - qw * qx), -1 + 2 * (qx * qx + qy * qy))
    assert abs(math.degrees(math.atan2(-ahead[0], -ahead[2]))) <= 12.0
    assert abs(math.degrees(math.asin(ahead[1])) + 6.0) <= 3.0


@given(st.floats(0.0, 3_600.0))
def test_the_head_moves_smoothly(seconds: float) -> None:
    before, after = (scripted_views(t)[0].pose for t in (seconds, seconds + 1 / 90))
    assert math.dist(before.position, after.position) < 0.002
    dot = abs(sum(a * b for a, b in zip(before.orientation, after.orientation, strict=True)))
    assert math.degrees(2 * math.acos(min(1.0, dot))) < 0.2


def test_the_head_does_move() -> None:
    poses = {scripted_views(t)[0].pose for t in range(10)}
    assert len(poses) == 10
