"""Figures of encoders that are known: pixels themselves, constants, noise."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from app.pretrain.evidence import (
    MARGIN,
    SHIFTS,
    components_sheet,
    effective_rank,
    explained,
    explained_by_place,
    measure,
    patches,
)

SIZE = 64


def smooth(rng: np.random.Generator, size: int) -> np.ndarray:
    """An image that changes over some 20 pixels."""
    noise = rng.random((size // 16 + 2, size // 16 + 2, 3)).astype(np.float32)
    return np.clip(cv2.resize(noise, (size, size), interpolation=cv2.INTER_CUBIC), 0, 1)


def test_an_encoder_that_keeps_all_pixels(rng: np.random.Generator) -> None:
    images = [smooth(rng, SIZE + MARGIN) for _ in range(4)]
    others = [smooth(rng, SIZE) for _ in range(60)]
    mix = rng.normal(0, 1, (768, 768)) / 28

    def encode(image: np.ndarray) -> np.ndarray:
        return patches(image) @ mix

    figures = measure(encode, images, others)
    assert figures.linear_psnr_db > 30
    assert abs(figures.random_pairs) < 0.1
    by_shift = list(figures.stability_by_shift.values())
    assert [*figures.stability_by_shift] == [*SHIFTS] and by_shift == sorted(by_shift)[::-1]
    assert 0.9 < by_shift[0] < 1 and figures.stability == pytest.approx(np.mean(by_shift))
    assert figures.colour_share > 0.5 > figures.place_share


def test_an_encoder_of_places_alone(rng: np.random.Generator) -> None:
    """Tokens that do not depend on the image are stable, and worthless otherwise."""
    images = [smooth(rng, SIZE + MARGIN) for _ in range(4)]
    tokens = rng.normal(0, 1, (16, 5))
    figures = measure(lambda image: tokens, images, [smooth(rng, SIZE)] * 2)
    assert figures.stability == pytest.approx(1) and figures.place_share == pytest.approx(1)
    assert figures.colour_share < 0.5 and figures.linear_psnr_db < 20
    assert figures.token_rms == pytest.approx(np.sqrt(np.mean(tokens**2)))


def test_ranks_and_shares(rng: np.random.Generator) -> None:
    basis, _ = np.linalg.qr(rng.normal(0, 1, (40, 40)))
    for rank in (1, 3, 20):
        tokens = rng.normal(0, 1, (8, 500, rank)) @ basis[:rank]
        assert effective_rank(tokens) == pytest.approx(rank, rel=0.02)
    assert effective_rank(np.ones((2, 3, 4))) == pytest.approx(1)
    cause, noise = rng.normal(0, 1, (8, 500, 2)), rng.normal(0, 1, (8, 500, 6))
    assert explained(cause @ rng.normal(0, 1, (2, 6)), cause) == pytest.approx(1)
    assert explained(noise, cause) < 0.01
    assert explained_by_place(noise) == pytest.approx(1 / 8, rel=0.1)


def test_the_sheet_shows_objects_apart(rng: np.random.Generator) -> None:
    """A square before a background: components of the image differ, the photograph is as it was."""
    image = np.full((SIZE, SIZE, 3), 0.2, np.float32)
    image[16:48, 16:48] = (0.9, 0.5, 0.1)
    data = components_sheet(lambda shown: patches(shown), [image, smooth(rng, SIZE)], across=1)
    sheet = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    cell = sheet.shape[0] // 2
    assert sheet.shape == (2 * cell, 3 * cell, 3)
    middle, corner = sheet[cell // 2, cell // 2], sheet[8, 8]
    assert np.allclose(middle, 255 * image[32, 32], atol=2)
    assert np.allclose(corner, 255 * image[0, 0], atol=2)
    for place in (1, 2):
        inside = sheet[cell // 2, place * cell + cell // 2].astype(int)
        assert np.abs(inside - sheet[8, place * cell + 8]).max() > 60
