"""The published preprocessing, against values that transformers' own image processor gave."""

from __future__ import annotations

import numpy as np
import pytest

from models.dinov3 import MEAN, STD
from models.preprocess import preprocess

# Pixels (row, column, channel) -> pixel_values of DINOv3ViTImageProcessor, transformers 5.24.0 on
# torch 2.13.0 and torchvision 0.28.0, for `picture` at each size; last the mean of all.
PLACES = ((0, 0, 0), (100, 37, 1), (223, 223, 2), (17, 201, 0))
PUBLISHED = {
    (300, 500): (-1.9683940, 0.7863341, 0.1817062, -0.3886173, 0.2165747),
    (100, 140): (-2.1179039, -0.1199430, 0.5833553, 0.4843229, 0.2157555),
    (224, 224): (-2.1179039, 2.4110649, 1.1410894, 1.8379145, 0.2148022),
    (1, 1): (-2.1179039, -1.3354341, -0.4101088, -2.1179039, -1.2878157),
    (3, 900): (-1.6453496, 0.5845687, 0.0843767, 0.0974776, 0.1642468),
    (1000, 37): (-1.7603875, -0.1726449, 0.8125063, 0.3184122, 0.2202564),
}


def picture(height: int, width: int) -> np.ndarray:
    """A pattern with detail at every scale, uint8 RGB."""
    y, x, c = np.ogrid[:height, :width, :3]
    return ((3 * y * y + 5 * x * x * (c + 1) + 7 * x * y + 40 * c) % 256).astype(np.uint8)


@pytest.mark.parametrize("shape", PUBLISHED)
def test_values_of_the_published_processor(shape: tuple[int, int]) -> None:
    pixels = (preprocess(picture(*shape)) - np.float32(MEAN)) / np.float32(STD)
    got = [pixels[place] for place in PLACES] + [pixels.mean(dtype=np.float64)]
    assert np.allclose(got, PUBLISHED[shape], rtol=0, atol=5e-6)


def test_range_type_and_size() -> None:
    unit = preprocess(np.full((30, 50, 3), (0, 51, 255), np.uint8), 64)
    assert unit.dtype == np.float32 and unit.shape == (64, 64, 3) and unit.flags.c_contiguous
    assert np.allclose(unit, (0, 0.2, 1), atol=1e-6)


def test_an_image_of_the_right_size_is_only_scaled() -> None:
    image = picture(48, 48)
    assert np.array_equal(preprocess(image, 48), image * np.float32(1 / 255))


def test_shrinking_averages_where_plain_interpolation_would_alias() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    inner = preprocess(stripes, 16)[:, 1:-1]
    assert np.allclose(inner, 0.5, atol=0.01)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 8, 3), np.float32),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((0, 8, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="must be RGB uint8"):
        preprocess(image)
