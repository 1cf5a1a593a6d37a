"""Where the panels hang: an arc of three pictures ahead of the wearer, a tilted HUD beneath.

Pictures and HUD can be carried elsewhere; a caption goes where its picture goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.scene.rigid import IDENTITY, compose, is_rigid
from app.scene.transforms import Matrix, model_matrix, orientation
from app.xr.driver import Pose

ARC_RADIUS = 1.9
ARC_HEIGHT = 1.82
ARC_STEP = math.radians(29.0)
PICTURE_SIZE = 0.92
CAPTION_SIZE = (0.92, 0.138)
CAPTION_GAP = 0.035


@dataclass(frozen=True)
class Panel:
    """A flat rectangle that faces +z of its pose; size (width, height) in metres."""

    pose: Pose
    size: tuple[float, float]

    def model(self) -> Matrix:
        """Matrix [4, 4] that takes the unit square in the xy plane, centred at 0, to the world."""
        return model_matrix(self.pose, (*self.size, 1.0))


@dataclass(frozen=True)
class Caption:
    """The words under a picture."""

    title: str
    subtitle: str


def _on_arc(step: int) -> Panel:
    angle = step * ARC_STEP
    position = (ARC_RADIUS * math.sin(angle), ARC_HEIGHT, -ARC_RADIUS * math.cos(angle))
    return Panel(Pose(position, orientation(-angle, 0.0)), (PICTURE_SIZE, PICTURE_SIZE))


_BENEATH = replace(
    IDENTITY, position=(0.0, -(PICTURE_SIZE + CAPTION_SIZE[1]) / 2 - CAPTION_GAP, 0.0)
)


def caption_panel(picture: Pose) -> Panel:
    """Where the caption of a picture hangs."""
    return Panel(compose(picture, _BENEATH), CAPTION_SIZE)


PICTURES = tuple(_on_arc(step) for step in (-1, 0, 1))
"""Camera, painted and components, from left to right."""

CAPTIONS = (
    Caption("Camera", "what the encoder sees"),
    Caption("Painted", "what the decoder makes of it"),
    Caption("Features", "first three principal components"),
)

HUD = Panel(Pose((0.0, 0.93, -1.15), orientation(0.0, math.radians(-30.0))), (1.6, 0.5))
"""At right angles to the line of sight of eyes at 1.6 m, 1.33 m away.

Its smallest text, 22 of 400 pixels, has capitals of 0.86 and small letters of 0.65 degrees: twice
what is read with ease (about 0.33). A wearer who wants it at arm's length pulls it there.
"""

MOVABLE = (*PICTURES, HUD)
"""What a hand can take, in the order in which poses are given."""

HUD_INDEX = len(PICTURES)

UNIFORM_BYTES = (2 * len(PICTURES) + 1) * 80


def uniforms(poses: Sequence[Pose], highlights: Sequence[float]) -> NDArray[np.float32]:
    """The shaders' array of panels, [7, 20] float32: pictures, captions, HUD.

    `poses` and `highlights` (0..1) are those of the `MOVABLE` panels. Raises `ValueError` for
    another number of them, or what is no pose.
    """
    if len(poses) != len(MOVABLE) or len(highlights) != len(MOVABLE):
        raise ValueError(
            f"the scene has {len(MOVABLE)} movable panels, "
            f"got {len(poses)} poses and {len(highlights)} highlights"
        )
    if not all(map(is_rigid, poses)) or not all(map(math.isfinite, highlights)):
        raise ValueError("a panel's pose is no rigid motion, or its highlight is not finite")
    movable = [Panel(pose, panel.size) for pose, panel in zip(poses, MOVABLE, strict=True)]
    captions = [caption_panel(pose) for pose in poses[:HUD_INDEX]]
    everything = (*movable[:HUD_INDEX], *captions, movable[HUD_INDEX])
    glow = (*highlights[:HUD_INDEX], *(0.0 for _ in captions), highlights[HUD_INDEX])
    rows = np.zeros((len(everything), 20), np.float32)
    for row, panel, highlight in zip(rows, everything, glow, strict=True):
        row[:16] = panel.model().T.ravel()
        row[16:18] = panel.size
        row[18] = highlight
    return rows
