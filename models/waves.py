"""Input values that every framework can make: sines and cosines of the row-major index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np


def sine(step: float, shape: Sequence[int]) -> np.ndarray:
    """f32 sin(step * index); the angle is rounded to f32."""
    return np.sin(_angles(step, shape)).astype(np.float32)


def cosine(step: float, shape: Sequence[int]) -> np.ndarray:
    """f32 cos(step * index); the angle is rounded to f32."""
    return np.cos(_angles(step, shape)).astype(np.float32)


def _angles(step: float, shape: Sequence[int]) -> np.ndarray:
    angles = (np.arange(prod(shape)) * step).astype(np.float32)
    return angles.astype(np.float64).reshape(shape)
