"""Matrices of the scene, float32, for column vectors: `clip = projection @ view @ model @ p`.

Space is right-handed with +y up and -z ahead, as in OpenXR. Clip space is WebGPU's: x and y in
-1..1 with y up, z in 0 (near) .. 1 (far). WGSL stores matrices by column, so upload the transpose.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from app.xr.driver import Fov, Pose, Quat, Vec3

Matrix = NDArray[np.float32]


def rotation(orientation: Quat) -> Matrix:
    """The [3, 3] rotation of a quaternion (x, y, z, w); its length need not be exactly 1.

    Raises `ValueError` for a quaternion that is zero or not finite.
    """
    length = math.hypot(*orientation)
    if not math.isfinite(length) or length < 1e-6:
        raise ValueError(f"orientation {orientation} is not a rotation: the pose is not tracked")
    x, y, z, w = (component / length for component in orientation)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ],
        np.float32,
    )


def view_matrix(pose: Pose) -> Matrix:
    """World to eye, [4, 4]: the inverse of the rigid motion that `pose` describes."""
    turn_back = rotation(pose.orientation).T
    view = np.eye(4, dtype=np.float32)
    view[:3, :3] = turn_back
    view[:3, 3] = -turn_back @ np.asarray(pose.position, np.float32)
    return view


def tangents(fov: Fov) -> tuple[float, float, float, float]:
    """Tangents of the left, right, up and down half-angles.

    Raises `ValueError` when the field of view is empty or reaches a right angle.
    """
    angles = (fov.left, fov.right, fov.up, fov.down)
    if not all(abs(angle) < math.pi / 2 for angle in angles):
        raise ValueError(f"{fov} must keep every half-angle below pi/2 radians")
    if fov.left >= fov.right or fov.down >= fov.up:
        raise ValueError(f"{fov} is empty: it needs left < right and down < up")
    left, right, up, down = (math.tan(angle) for angle in angles)
    return left, right, up, down


def projection(fov: Fov, near: float, far: float) -> Matrix:
    """Eye to clip space, [4, 4], for a possibly asymmetric field of view; planes in metres.

    Raises `ValueError` unless 0 < near < far.
    """
    if not 0 < near < far:
        raise ValueError(f"clip planes need 0 < near < far, got {near} and {far}")
    left, right, up, down = tangents(fov)
    depth = far / (near - far)
    return np.array(
        [
            [2 / (right - left), 0, (right + left) / (right - left), 0],
            [0, 2 / (up - down), (up + down) / (up - down), 0],
            [0, 0, depth, near * depth],
            [0, 0, -1, 0],
        ],
        np.float32,
    )


def view_rays(pose: Pose, fov: Fov) -> Matrix:
    """World directions of an eye's pixels, [3, 3]: `ray = view_rays @ (ndc_x, ndc_y, 1)`."""
    left, right, up, down = tangents(fov)
    spread = np.array(
        [
            [(right - left) / 2, 0, (right + left) / 2],
            [0, (up - down) / 2, (up + down) / 2],
            [0, 0, -1],
        ],
        np.float32,
    )
    return rotation(pose.orientation) @ spread


def orientation(yaw: float, pitch: float) -> Quat:
    """Turned by `pitch` about +x, then by `yaw` about +y; radians, right-handed.

    A panel faces +z: positive yaw turns its face towards +x and negative pitch turns it up.
    """
    cos_yaw, sin_yaw = math.cos(yaw / 2), math.sin(yaw / 2)
    cos_pitch, sin_pitch = math.cos(pitch / 2), math.sin(pitch / 2)
    return (cos_yaw * sin_pitch, sin_yaw * cos_pitch, -sin_yaw * sin_pitch, cos_yaw * cos_pitch)


def model_matrix(pose: Pose, scale: Vec3) -> Matrix:
    """Model to world, [4, 4]: scale, then turn and move as `pose` says.

    Raises `ValueError` when its orientation is no rotation.
    """
    model = np.eye(4, dtype=np.float32)
    model[:3, :3] = rotation(pose.orientation) * np.asarray(scale, np.float32)
    model[:3, 3] = pose.position
    return model
