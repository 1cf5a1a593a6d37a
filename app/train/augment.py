"""What a training sample is: a random square of a photograph, mirrored and recoloured at random."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from app.camera.images import resize
from app.camera.source import Image

SMALLEST = 0.5
"""Side of the smallest square, of the photograph's short side."""
RECOLOURED = 0.8
"""Share of the samples whose colours change; the rest keep the look of photographs."""


@dataclass(frozen=True)
class Recolouring:
    """How far colours may change."""

    contrast: float = 0.25
    saturation: float = 0.4
    balance: float = 0.1
    """Factors of contrast, saturation and single channels are 1 plus or minus at most these."""
    brightness: float = 0.1
    """Largest shift of the brightness, of the full range."""


USUAL = Recolouring()
COLOUR_DRAWS = 6
"""Of contrast, saturation, red, green, blue and brightness."""
LUMA = np.array([0.299, 0.587, 0.114])
"""Rec. 601: weights of red, green and blue in the brightness."""


def augmented(image: Image, rng: np.random.Generator, size: int) -> np.ndarray:
    """A sample from an RGB photograph: f32 [size, size, 3] in 0..1."""
    square = resize(_square(image, rng, size), size, size)
    if rng.random() < 0.5:
        square = np.ascontiguousarray(square[:, ::-1])
    sample = square.astype(np.float32) / np.float32(255)
    if rng.random() < RECOLOURED:
        matrix = colour_matrices(rng.uniform(-1, 1, COLOUR_DRAWS), USUAL)
        sample = np.clip(cv2.transform(sample, matrix.astype(np.float32)), 0, 1)
    return sample


def _square(image: Image, rng: np.random.Generator, size: int) -> Image:
    """A random square, of no fewer pixels than the sample if the photograph has them."""
    height, width = image.shape[:2]
    short = min(height, width)
    smallest = min(short, max(round(SMALLEST * short), size, 1))
    side = int(rng.integers(smallest, short, endpoint=True))
    top = int(rng.integers(0, height - side, endpoint=True))
    left = int(rng.integers(0, width - side, endpoint=True))
    return image[top : top + side, left : left + side]


def colour_matrices(signed: np.ndarray, most: Recolouring) -> np.ndarray:
    """[..., 3, 4]: linear maps of RGB in 0..1 and a shift, all changes of colour in one.

    `signed` [..., COLOUR_DRAWS] are in -1..1: how much of the most.
    """
    contrast = 1 + signed[..., 0, None, None] * most.contrast
    saturation = 1 + signed[..., 1, None, None] * most.saturation
    channels = 1 + signed[..., 2:5, None] * most.balance
    shift = signed[..., 5, None, None] * most.brightness + (1 - contrast) / 2
    mixed = saturation * np.eye(3) + (1 - saturation) * np.tile(LUMA, (3, 1))
    linear = contrast * channels * mixed
    return np.concatenate([linear, np.broadcast_to(shift, (*shift.shape[:-2], 3, 1))], axis=-1)
