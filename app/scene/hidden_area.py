"""The part of each eye that the wearer cannot see is not shaded."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import wgpu
from numpy.typing import NDArray

from app.scene.pipelines import ScenePass

MAX_TRIANGLES = 2048
"""Per eye; real masks have a hundred or so. Of more, the rest is shaded in vain."""

_CORNER_BYTES = 8
_EYE_BYTES = 3 * MAX_TRIANGLES * _CORNER_BYTES


class HiddenTriangles(Protocol):
    """Triangles that cover the hidden pixels of one eye, as XR_KHR_visibility_mask gives them."""

    @property
    def vertices(self) -> NDArray[np.float32]:
        """float32 [n, 2]: tangents of the angles right and up from the view's axis."""

    @property
    def indices(self) -> NDArray[np.uint32]:
        """uint32 [3 m]: the corners of m triangles."""


class HiddenArea:
    """Covers hidden pixels at the near plane; draw it first. Nothing is hidden at the start."""

    def __init__(self, scene: ScenePass) -> None:
        self._queue = scene.device.queue
        self._corners = [0, 0]
        self._buffer = scene.device.create_buffer(
            label="hidden area",
            size=2 * _EYE_BYTES,
            usage=wgpu.BufferUsage.VERTEX | wgpu.BufferUsage.COPY_DST,
        )
        corner = {"format": "float32x2", "offset": 0, "shader_location": 0}
        self._pipeline = scene.pipeline(
            scene.shader("eye", "hidden"),
            "hidden_vertex",
            "hidden_fragment",
            buffers=[{"array_stride": _CORNER_BYTES, "attributes": [corner]}],
            writes_depth=True,
            writes_colour=False,
        )

    def set(self, left: HiddenTriangles | None, right: HiddenTriangles | None) -> None:
        """Hide other pixels; None hides none. Raises `ValueError` for what are no triangles."""
        corners = [_corners(mask) for mask in (left, right)]
        for eye, points in enumerate(corners):
            self._corners[eye] = len(points)
            if len(points):
                self._queue.write_buffer(self._buffer, eye * _EYE_BYTES, points)

    def draw(self, render: wgpu.GPURenderPassEncoder, eye: int) -> None:
        """Record it for eye 0 (left) or 1; group 0 is bound."""
        if self._corners[eye]:
            render.set_pipeline(self._pipeline)
            render.set_vertex_buffer(0, self._buffer, eye * _EYE_BYTES, _EYE_BYTES)
            render.draw(self._corners[eye])


def _corners(mask: HiddenTriangles | None) -> NDArray[np.float32]:
    """Tangents of the corners of its triangles, [3 m, 2], at most `MAX_TRIANGLES`."""
    if mask is None:
        return np.zeros((0, 2), np.float32)
    vertices: NDArray[Any] = np.asarray(mask.vertices)
    indices: NDArray[Any] = np.asarray(mask.indices)
    if vertices.ndim != 2 or vertices.shape[1] != 2 or not np.isfinite(vertices).all():
        raise ValueError(
            f"a visibility mask's vertices must be finite [n, 2], got {vertices.shape}"
        )
    if indices.ndim != 1 or len(indices) % 3 or indices.dtype.kind not in "ui":
        raise ValueError(f"a visibility mask's indices must be integers [3 m], got {indices.shape}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(vertices):
        raise ValueError(f"a visibility mask's indices must be below {len(vertices)}, its vertices")
    return vertices[indices[: 3 * MAX_TRIANGLES]].astype(np.float32)
