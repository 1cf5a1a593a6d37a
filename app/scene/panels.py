"""Where the panels hang: an arc of three pictures ahead of the wearer, a tilted HUD beneath."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.scene.transforms import Matrix, model_matrix
from app.xr.driver import Vec3

ARC_RADIUS = 1.9
ARC_HEIGHT = 1.82
ARC_STEP = math.radians(29.0)
PICTURE_SIZE = 0.92
CAPTION_SIZE = (0.92, 0.138)
CAPTION_GAP = 0.035


@dataclass(frozen=True)
class Panel:
    """A flat rectangle: centre in metres, angles in radians, size (width, height) in metres."""

    position: Vec3
    yaw: float
    pitch: float
    size: tuple[float, float]

    def model(self) -> Matrix:
        """Matrix [4, 4] that takes the unit square in the xy plane, centred at 0, to the world."""
        return model_matrix(self.position, self.yaw, self.pitch, (*self.size, 1.0))


@dataclass(frozen=True)
class Caption:
    """The words under a picture."""

    title: str
    subtitle: str


def _on_arc(step: int, height: float, size: tuple[float, float]) -> Panel:
    angle = step * ARC_STEP
    position = (ARC_RADIUS * math.sin(angle), height, -ARC_RADIUS * math.cos(angle))
    return Panel(position, -angle, 0.0, size)


_CAPTION_HEIGHT = ARC_HEIGHT - (PICTURE_SIZE + CAPTION_SIZE[1]) / 2 - CAPTION_GAP

PICTURES = tuple(_on_arc(step, ARC_HEIGHT, (PICTURE_SIZE, PICTURE_SIZE)) for step in (-1, 0, 1))
"""Camera, painted and components, from left to right."""

CAPTION_PANELS = tuple(_on_arc(step, _CAPTION_HEIGHT, CAPTION_SIZE) for step in (-1, 0, 1))

CAPTIONS = (
    Caption("Camera", "what the encoder sees"),
    Caption("Painted", "what the decoder makes of it"),
    Caption("Features", "first three principal components"),
)

HUD = Panel((0.0, 0.93, -1.15), 0.0, math.radians(-30.0), (1.6, 0.5))


def uniforms() -> NDArray[np.float32]:
    """The shaders' array of panels, [7, 20] float32: pictures, captions, HUD, in drawing order."""
    everything = (*PICTURES, *CAPTION_PANELS, HUD)
    rows = np.zeros((len(everything), 20), np.float32)
    for row, panel in zip(rows, everything, strict=True):
        row[:16] = panel.model().T.ravel()
        row[16:18] = panel.size
    return rows
