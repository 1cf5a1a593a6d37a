"""The scripted head of the simulated headset: a standing wearer who sways and looks around."""

from __future__ import annotations

import math

from app.xr.driver import Fov, Pose, Quat, Vec3, View

IPD_M = 0.063
HEAD_HEIGHT_M = 1.6
FOV_OUTWARD, FOV_INWARD, FOV_VERTICAL = math.radians(47.0), math.radians(45.0), math.radians(46.0)


def scripted_views(seconds: float) -> tuple[View, View]:
    """Left and right eye of the wearer, `seconds` into the session.

    Yaw stays within 12 degrees, pitch within 3 of a slight look down, roll within 1; the head
    moves a few centimetres about 1.6 m above the floor. Smooth, and the same on every run.
    """

    def wave(period_s: float, phase: float = 0.0) -> float:
        return math.sin(2.0 * math.pi * seconds / period_s + phase)

    yaw = math.radians(9.0 * wave(13.0) + 2.5 * wave(5.3, 1.0))
    pitch = math.radians(-6.0 + 2.0 * wave(8.7, 0.5) + 0.7 * wave(3.9))
    roll = math.radians(0.8 * wave(6.1, 2.0))
    orientation = _head_orientation(yaw, pitch, roll)
    head = (0.025 * wave(7.3), HEAD_HEIGHT_M + 0.006 * wave(3.1, 0.7), 0.015 * wave(9.1, 1.3))
    axis = _right_axis(orientation)

    def eye(side: float) -> View:
        x, y, z = (h + side * 0.5 * IPD_M * r for h, r in zip(head, axis, strict=True))
        left, right = (FOV_OUTWARD, FOV_INWARD) if side < 0 else (FOV_INWARD, FOV_OUTWARD)
        fov = Fov(left=-left, right=right, up=FOV_VERTICAL, down=-FOV_VERTICAL)
        return View(Pose((x, y, z), orientation), fov)

    return eye(-1.0), eye(1.0)


def _head_orientation(yaw: float, pitch: float, roll: float) -> Quat:
    """Rotate by `roll` about z, then `pitch` about x, then `yaw` about y (radians)."""
    cy, sy = math.cos(yaw / 2), math.sin(yaw / 2)
    cp, sp = math.cos(pitch / 2), math.sin(pitch / 2)
    cr, sr = math.cos(roll / 2), math.sin(roll / 2)
    return (
        cy * sp * cr + sy * cp * sr,
        sy * cp * cr - cy * sp * sr,
        cy * cp * sr - sy * sp * cr,
        cy * cp * cr + sy * sp * sr,
    )


def _right_axis(orientation: Quat) -> Vec3:
    """The +x axis rotated by `orientation`."""
    x, y, z, w = orientation
    return 1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y)
