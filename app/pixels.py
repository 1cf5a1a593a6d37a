"""Images as signals in 0..1, and how far two of them are apart."""

from __future__ import annotations

import math

import numpy as np


def to_unit(image: np.ndarray) -> np.ndarray:
    """uint8 -> f32 in 0..1."""
    return image.astype(np.float32) * np.float32(1 / 255)


def psnr_db(mse: float) -> float:
    """Peak signal-to-noise ratio for signals in 0..1; infinite for identical images."""
    return -10 * math.log10(mse) if mse > 0 else math.inf


def finite_db(mse: float) -> float | None:
    """The same; None where there is no finite figure: identical images, or broken ones."""
    return psnr_db(mse) if 0 < mse < math.inf else None
