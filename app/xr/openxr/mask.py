"""The part of an eye image that the wearer cannot see (XR_KHR_visibility_mask)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.xr.openxr.binding import STEREO, checked, function, told, xr
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.session import XrSession


@dataclass(frozen=True)
class VisibilityMask:
    """Triangles that cover the hidden pixels of one eye.

    `vertices`: float32 [n, 2], tangents of the angles right and up from the view's axis (points of
    the plane z = -1). `indices`: uint32 [3 m], counter-clockwise.
    """

    vertices: NDArray[np.float32]
    indices: NDArray[np.uint32]


def visibility_mask(instance: XrInstance, session: XrSession, eye: int) -> VisibilityMask | None:
    """The mask of eye 0 (left) or 1; None when the runtime has none.

    It may change: fetch anew when `session.masks_changed`.
    """
    if not instance.has("XR_KHR_visibility_mask"):
        return None
    ask = function(instance.handle, "xrGetVisibilityMaskKHR", xr.PFN_xrGetVisibilityMaskKHR)
    hidden = xr.VisibilityMaskTypeKHR.HIDDEN_TRIANGLE_MESH.value
    mask = xr.VisibilityMaskKHR()

    def fetch() -> None:
        with told("asking for the visibility mask"):
            checked(ask(session.handle, STEREO.value, eye, hidden, ctypes.byref(mask)))

    fetch()
    points, corners = mask.vertex_count_output, mask.index_count_output
    if not points or not corners:
        return None
    vertices = (xr.Vector2f * points)()
    indices = (ctypes.c_uint32 * corners)()
    mask.vertex_capacity_input, mask.index_capacity_input = points, corners
    mask.vertices = ctypes.cast(vertices, ctypes.POINTER(xr.Vector2f))
    mask.indices = ctypes.cast(indices, ctypes.POINTER(ctypes.c_uint32))
    fetch()
    return VisibilityMask(
        np.frombuffer(vertices, np.float32).reshape(points, 2).copy(),
        np.frombuffer(indices, np.uint32).copy(),
    )
