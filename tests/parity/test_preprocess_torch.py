"""Resizing against PyTorch's, which the published image processor uses."""

from __future__ import annotations

import numpy as np
import pytest

from models.preprocess import preprocess

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.reference

SHAPES = [(1, 1), (1, 3000), (7, 5), (223, 225), (224, 448), (480, 640), (641, 359), (1500, 2000)]


@pytest.mark.parametrize("height, width", SHAPES)
@pytest.mark.parametrize("size", [224, 160])
def test_as_interpolate_with_antialiasing(
    height: int, width: int, size: int, rng: np.random.Generator
) -> None:
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None] * (1 / 255)
    wanted = torch.nn.functional.interpolate(
        planes, (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    got = preprocess(image, size)
    assert np.abs(got - wanted[0].permute(1, 2, 0).numpy()).max() < 1e-6
