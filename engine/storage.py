"""How weights lie in memory, and which values survive that."""

from __future__ import annotations

from typing import Literal

import numpy as np

Storage = Literal["f32", "f16"]

TOLERANCE = 1e-3
"""Relative L2 of a rounded tensor. Normal numbers lose half of it at most, tiny ones anything."""


def rounded(value: np.ndarray) -> np.ndarray | None:
    """Values as f16; None where it does not hold them within TOLERANCE: one is beyond 65504, or
    too many are tiny.
    """
    exact = np.asarray(value, np.float32)
    with np.errstate(over="ignore"):
        found = exact.astype(np.float16)
    if not np.isfinite(found).all():
        return None
    held = np.linalg.norm(exact - found) <= TOLERANCE * np.linalg.norm(exact)
    return found if held else None


def survives(value: np.ndarray) -> bool:
    """Whether f16 holds the values."""
    return rounded(value) is not None
