"""Asking the runtime what the wearer cannot see (XR_KHR_visibility_mask)."""

from __future__ import annotations

import ctypes

import numpy as np

from app.xr.openxr.binding import STEREO, checked, function, told, xr
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.session import XrSession
from app.xr.visibility import VisibilityMask


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
