"""Parameter values that depend on name and index only: `name-index-uniform-v1`.

Every host and framework computes the same f32 bits, so networks compare without a weight file.
"""

from __future__ import annotations

from math import prod

import numpy as np

AMPLITUDE = 0.024494898
"""0.02 * sqrt(1.5): uniform values with this bound spread like a Gaussian of deviation 0.014."""


def hash_uniform(name: str, shape: tuple[int, ...], amplitude: float = AMPLITUDE) -> np.ndarray:
    """Uniform f32 in [-amplitude, amplitude), by name and row-major index."""
    x = np.arange(prod(shape), dtype=np.uint32)
    x ^= np.uint32(_hash_of(name))
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    value = (x >> np.uint32(8)).astype(np.float32)
    value *= np.float32(1 / 8388608)
    value -= np.float32(1)
    value *= np.float32(amplitude)
    return value.reshape(shape)


def _hash_of(name: str) -> int:
    result = 0
    for byte in name.encode():
        result = (result * 31 + byte) & 0xFFFFFFFF
    return result
