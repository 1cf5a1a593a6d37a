"""What a training sample is: a random square of a photograph, mirrored and recoloured at random."""

from __future__ import annotations

import cv2
import numpy as np

from app.camera.images import resize
from app.camera.source import Image

SMALLEST = 0.5
"""Side of the smallest square, of the photograph's short side."""
RECOLOURED = 0.8
"""Share of the samples whose colours change; the rest keep the look of photographs."""
CONTRAST, SATURATION, BALANCE = 0.25, 0.4, 0.1
"""Factors of contrast, saturation and single channels are 1 plus or minus at most this."""
BRIGHTNESS = 0.1
"""Largest shift of the brightness, of the full range."""

LUMA = np.array([0.299, 0.587, 0.114])
"""Rec. 601: weights of red, green and blue in the brightness."""


def augmented(image: Image, rng: np.random.Generator, size: int) -> np.ndarray:
    """A sample from an RGB photograph: f32 [size, size, 3] in 0..1."""
    square = resize(_square(image, rng, size), size, size)
    if rng.random() < 0.5:
        square = np.ascontiguousarray(square[:, ::-1])
    sample = square.astype(np.float32) / np.float32(255)
    if rng.random() < RECOLOURED:
        sample = np.clip(cv2.transform(sample, _colour_matrix(rng)), 0, 1)
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


def _colour_matrix(rng: np.random.Generator) -> np.ndarray:
    """f32 [3, 4]: a linear map of RGB and a shift, all changes of colour in one."""
    contrast, saturation = 1 + rng.uniform(-1, 1, 2) * (CONTRAST, SATURATION)
    channels = 1 + rng.uniform(-BALANCE, BALANCE, 3)
    shift = rng.uniform(-BRIGHTNESS, BRIGHTNESS) + (1 - contrast) / 2
    grey = np.tile(LUMA, (3, 1))
    mixed = saturation * np.eye(3) + (1 - saturation) * grey
    linear = contrast * channels[:, None] * mixed
    return np.column_stack([linear, np.full(3, shift)]).astype(np.float32)
