"""Hashed values and layouts: every bit is a function of name and native index."""

from __future__ import annotations

import numpy as np
import pytest

from models import layouts
from models.hashing import AMPLITUDE, hash_uniform
from models.layouts import Layout
from models.workload import norms

MASK = 0xFFFFFFFF


def hashed(name: str, index: int) -> float:
    """The definition in Python's integers; in units of the amplitude."""
    h = 0
    for byte in name.encode():
        h = (h * 31 + byte) & MASK
    x = index ^ h
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    x ^= x >> 16
    return (x >> 8) / 8388608 - 1


@pytest.mark.parametrize("name", ["", "w", "model.layers.29.self_attn.o_proj.weight", "é"])
def test_values_by_definition(name: str) -> None:
    got = hash_uniform(name, (7, 11), 1.0)
    assert got.dtype == np.float32
    # 24 bits: exact in f32.
    assert got.tolist() == np.reshape([hashed(name, j) for j in range(77)], (7, 11)).tolist()
    scaled = hash_uniform(name, (77,))
    assert np.array_equal(scaled, got.ravel() * np.float32(AMPLITUDE))


def test_values_are_uniform() -> None:
    value = hash_uniform("some.weight", (100_000,), 1.0).astype(np.float64)
    assert abs(value.mean()) < 0.01 and abs(value.std() - 3**-0.5) < 0.01
    assert -1 <= value.min() < -0.999 and 0.999 < value.max() < 1


LAYOUTS = {
    "unchanged": layouts.unchanged(3, 5),
    "dense": layouts.dense(3, 5),
    "conv1d": layouts.conv(4, 3, 5),
    "conv2d": layouts.conv(4, 3, 5, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_go_there_and_back(layout: Layout) -> None:
    value = hash_uniform("w", layout.native)
    there = layout.to_engine(value)
    assert there.shape == layout.engine and there.flags.c_contiguous
    back = layout.to_native(there)
    assert back.flags.c_contiguous and np.array_equal(back, value)


def test_where_elements_go() -> None:
    dense, conv = hash_uniform("w", (3, 5)), hash_uniform("w", (4, 3, 5, 2))
    assert layouts.dense(3, 5).to_engine(dense)[4, 1] == dense[1, 4]
    # Taps are (ky, kx, c).
    assert layouts.conv(4, 3, 5, 2).to_engine(conv)[2, (4 * 2 + 1) * 3 + 2] == conv[2, 2, 4, 1]


def test_norms_start_as_the_identity() -> None:
    assert norms("model.norm.weight") == 1 and norms("layers.0.final_layer_norm.bias") == 0
    assert norms("layers.0.fc1.bias") is None
