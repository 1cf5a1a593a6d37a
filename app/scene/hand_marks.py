"""Shows where the wearer's hands are and what they point at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import wgpu
from numpy.typing import NDArray

from app.scene.pipelines import FRAGMENT, UNIFORM, VERTEX, ScenePass, bind_group, bind_layout
from app.scene.rigid import is_rigid
from app.scene.transforms import model_matrix
from app.xr.driver import Pose
from app.xr.hands import Hand

IDLE_RAY_M = 0.45
"""Length of a ray that meets nothing; it ends in a point."""

TIP = 0.4
"""Thickness of a ray's end on what it meets, relative to its beginning."""

_VERTICES = 10 * 16 * 6 + 6 * 6  # body and ray, as in hands.wgsl
_FLOATS = 36


class HandMarks:
    """A small body at each tracked grip, a ray along each tracked aim. None at the start."""

    def __init__(self, scene: ScenePass) -> None:
        device = scene.device
        self._queue = device.queue
        self._shown = False
        self._buffer = device.create_buffer(
            label="hands",
            size=2 * _FLOATS * 4,
            usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST,
        )
        layout = bind_layout(device, (VERTEX | FRAGMENT, UNIFORM))
        self._group = bind_group(device, layout, {"buffer": self._buffer})
        self._pipeline = scene.pipeline(
            scene.shader("eye", "hands"), "hand_vertex", "hand_fragment", layout, writes_depth=True
        )

    def set(self, hands: Sequence[Hand], rays: Sequence[float | None]) -> None:
        """Show the left and the right hand, each with a ray of that many metres.

        None: the ray meets nothing. A pose that is not tracked, or is no rigid motion, is not
        shown. Raises `ValueError` for another number of hands or rays.
        """
        if len(hands) != 2 or len(rays) != 2:
            raise ValueError(
                f"the scene shows 2 hands with a ray each, got {len(hands)} and {len(rays)}"
            )
        shown = any(_tracked(pose) for hand in hands for pose in (hand.grip, hand.aim))
        if shown or self._shown:
            rows = np.zeros((2, _FLOATS), np.float32)
            for row, hand, ray in zip(rows, hands, rays, strict=True):
                row[:16], row[16:32] = _placed(hand.grip), _placed(hand.aim)
                row[32:35] = (
                    IDLE_RAY_M if ray is None else ray,
                    0.0 if ray is None else TIP,
                    hand.grabbing,
                )
            self._queue.write_buffer(self._buffer, 0, rows)
        self._shown = shown

    def draw(self, render: wgpu.GPURenderPassEncoder) -> None:
        """Record both; group 0 is bound."""
        if self._shown:
            render.set_pipeline(self._pipeline)
            render.set_bind_group(1, self._group)
            render.draw(_VERTICES, 2)


def _tracked(pose: Pose | None) -> bool:
    return pose is not None and is_rigid(pose)


def _placed(pose: Pose | None) -> NDArray[np.float32]:
    """Sixteen floats by column; what is not tracked shrinks to a point, which covers no pixel."""
    if pose is None or not is_rigid(pose):
        return np.array([0.0] * 15 + [1.0], np.float32)
    return model_matrix(pose, (1.0, 1.0, 1.0)).T.ravel()
