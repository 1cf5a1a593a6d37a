"""Rigid motions as `Pose`s, in plain Python floats: a few of them a frame cost next to nothing.

A pose moves what is described in its own frame to the frame that the pose is given in.
"""

from __future__ import annotations

import math

from app.xr.driver import Pose, Quat, Vec3

IDENTITY = Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))


def is_rigid(pose: Pose) -> bool:
    """Whether the pose is finite and its quaternion a rotation, if not of unit length."""
    length = math.hypot(*pose.orientation)
    return 1e-6 < length < math.inf and all(map(math.isfinite, pose.position))


def rotate(turn: Quat, vector: Vec3) -> Vec3:
    """`vector` turned by a unit quaternion."""
    (x, y, z, w), (a, b, c) = turn, vector
    p, q, r = 2 * (y * c - z * b), 2 * (z * a - x * c), 2 * (x * b - y * a)
    return (
        a + w * p + y * r - z * q,
        b + w * q + z * p - x * r,
        c + w * r + x * q - y * p,
    )


def conjugate(turn: Quat) -> Quat:
    """The inverse of a unit quaternion."""
    x, y, z, w = turn
    return (-x, -y, -z, w)


def moved(pose: Pose, point: Vec3) -> Vec3:
    """A point of the pose's frame, seen from outside."""
    return _sum(rotate(pose.orientation, point), pose.position)


def seen_from(pose: Pose, point: Vec3) -> Vec3:
    """A point outside, in the pose's frame: the inverse of `moved`."""
    (a, b, c), (x, y, z) = point, pose.position
    return rotate(conjugate(pose.orientation), (a - x, b - y, c - z))


def compose(outer: Pose, inner: Pose) -> Pose:
    """`inner`, given in the frame of `outer`, seen from outside; its quaternion has length 1."""
    return Pose(moved(outer, inner.position), unit(_product(outer.orientation, inner.orientation)))


def relative(pose: Pose, frame: Pose) -> Pose:
    """A pose in the frame of another: composed with that frame again, it is the same pose."""
    turn = _product(conjugate(frame.orientation), pose.orientation)
    return Pose(seen_from(frame, pose.position), unit(turn))


def unit(turn: Quat) -> Quat:
    """The quaternion at length 1. Raises `ZeroDivisionError` for zero."""
    length = math.hypot(*turn)
    x, y, z, w = turn
    return (x / length, y / length, z / length, w / length)


def _sum(a: Vec3, b: Vec3) -> Vec3:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _product(first: Quat, second: Quat) -> Quat:
    (x, y, z, w), (a, b, c, d) = first, second
    return (
        w * a + x * d + y * c - z * b,
        w * b - x * c + y * d + z * a,
        w * c + x * b - y * a + z * d,
        w * d - x * a - y * b - z * c,
    )
