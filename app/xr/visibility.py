"""The part of an eye image that the wearer cannot see, behind the lens's edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class VisibilityMask:
    """Triangles that cover the hidden pixels of one eye.

    `vertices`: float32 [n, 2], tangents of the angles right and up from the view's axis (points of
    the plane z = -1). `indices`: uint32 [3 m], counter-clockwise.
    """

    vertices: NDArray[np.float32]
    indices: NDArray[np.uint32]
