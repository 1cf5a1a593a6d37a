"""What an encoder learns from: two views, which patches show the same place, what is masked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.pretrain.views import (
    GREY,
    MASKED,
    RECOLOURED,
    SMALLEST,
    Windows,
    inputs,
    paint,
    random_blocks,
    random_windows,
    recolourings,
)
from app.train.augment import COLOUR_DRAWS

PLACE, SIDE = st.integers(0, 200), st.integers(20, 300)
WINDOWS = st.lists(st.tuples(PLACE, PLACE, SIDE, st.booleans()), min_size=2, max_size=2)


def pixel_places(window: tuple[int, int, int, bool], across: int) -> np.ndarray:
    """Where the centres of patches lie, read off an image of coordinates as a view crops it."""
    left, top, side, mirrored = window
    size = across * 16
    along = (np.arange(size) + 0.5) / size * side
    x, y = np.meshgrid(left + along, top + along)
    if mirrored:
        x = x[:, ::-1]
    centres = [v.reshape(across, 16, across, 16).mean(axis=(1, 3)).reshape(-1) for v in (x, y)]
    return np.stack(centres, axis=-1)


@settings(max_examples=60)
@given(pair=WINDOWS, across=st.integers(1, 6))
def test_patches_match_the_nearest_of_the_other_view(
    pair: list[tuple[int, int, int, bool]], across: int
) -> None:
    windows = Windows(*(np.array(values) for values in zip(*pair, strict=True)))
    places = np.stack([pixel_places(window, across) for window in pair])
    assert np.allclose(windows.places(across), places)
    matched, shown = windows.partners().patches(places, across)
    for mine, other in ((0, 1), (1, 0)):
        distances = np.abs(places[mine][:, None] - places[other][None]).max(axis=-1)
        patch = pair[other][2] / across
        for k in range(across**2):
            least = distances[k].min()
            assert shown[mine, k] == (least < patch / 2) or np.isclose(least, patch / 2)
            if shown[mine, k]:
                assert distances[k, matched[mine, k]] <= least + 1e-6 * patch


def test_a_view_shows_what_the_window_covers() -> None:
    """Pixels come from where `places` says."""
    image = np.zeros((64, 96, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(96), np.arange(64)[:, None]
    seen = np.empty((48, 48, 3), np.uint8)
    for mirrored in (False, True):
        paint(image, seen, (40, 8, 48, mirrored), None, 0)
        window = Windows(*(np.array([value]) for value in (40, 8, 48, mirrored)))
        centres = seen.reshape(3, 16, 3, 16, 3).mean(axis=(1, 3))[..., :2].reshape(-1, 2)
        assert np.allclose(centres + 0.5, window.places(3)[0])


def test_recoloured_views(rng: np.random.Generator) -> None:
    """Some views keep their colours, some lose them, the others change, all within the range."""
    n = 4000
    colours = recolourings(rng.random((n, 2)), rng.random((n, COLOUR_DRAWS)))
    image = rng.integers(0, 256, (8, 8, 3), np.uint8)
    views = np.empty((n, 8, 8, 3), np.uint8)
    for seen, colour in zip(views, colours, strict=True):
        paint(image, seen, (0, 0, 8, False), colour, 0)
    kept = (views == image).all(axis=(1, 2, 3))
    grey = (np.ptp(views.astype(int), axis=-1) <= 1).all(axis=(1, 2))
    assert kept.mean() == pytest.approx((1 - RECOLOURED) * (1 - GREY), abs=0.03)
    assert grey.mean() == pytest.approx(GREY, abs=0.02)
    brightness = views[~grey & ~kept].mean(axis=(1, 2, 3))
    assert 8 < brightness.std() < 60 and abs(brightness.mean() - image.mean()) < 6


@settings(max_examples=60)
@given(across=st.integers(1, 14), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_blocks_have_the_wanted_share(across: int, share: float, seed: int) -> None:
    mask = random_blocks(across, share, np.random.default_rng(seed))
    assert mask.shape == (across**2,) and mask.dtype == bool
    assert mask.sum() == min(int(share * across**2), across**2 - 1)


@settings(max_examples=40)
@given(height=st.integers(1, 90), width=st.integers(1, 90), seed=st.integers(0, 2**32))
def test_views_of_any_photograph(height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    before = image.copy()
    corners = np.array([[0.0] * 4, [np.nextafter(1, 0)] * 4])
    windows = random_windows(
        np.array([[height, width]] * 6), np.concatenate([corners, rng.random((4, 4))])
    )
    short = min(height, width)
    side = windows.side
    assert np.all((max(1, round(SMALLEST * short)) <= side) & (side <= short))
    assert side[1] == short
    for start, extent in ((windows.left, width), (windows.top, height)):
        assert np.all((start >= 0) & (start + side <= extent))
    views = inputs([(image, rng)], 32, 0.5)["image"]
    assert views.shape == (2, 32, 32, 3) and views.dtype == np.float32
    assert 0 <= views.min() <= views.max() <= 1 + 1e-6
    assert np.array_equal(image, before)


def test_a_batch_counts_patches_over_all_views(rng: np.random.Generator) -> None:
    photos = [rng.integers(0, 256, (80, 100, 3), np.uint8) for _ in range(3)]
    samples = [(photo, np.random.default_rng(k)) for k, photo in enumerate(photos)]
    batch = inputs(samples, 64, 1.0)
    n = 16
    assert {name: value.shape for name, value in batch.items()} == {
        "image": (6, 64, 64, 3),
        "masked": (6, n, 1),
        "match": (6 * n,),
        "weight": (6 * n,),
    }
    assert [value.dtype for value in batch.values()] == [np.float32, np.float32, np.uint32, "f4"]
    number = np.arange(6 * n)
    masked = batch["masked"].reshape(-1) == 1
    assert MASKED[0] - 1 / n <= masked.mean() <= MASKED[1]
    assert np.array_equal(batch["match"][masked], number[masked]), "hidden patches match themselves"
    assert np.all(batch["weight"][masked] == 1)
    view_of = batch["match"][~masked] // n
    assert np.array_equal(view_of, number[~masked] // n ^ 1), "others match the partner view"

    # A photograph's views are the same in any batch.
    alone = inputs([(photos[1], np.random.default_rng(1))], 64, 1.0)
    for name in ("image", "masked"):
        assert np.array_equal(alone[name], batch[name][2:4])
    assert np.array_equal(alone["match"] + 2 * n, batch["match"][2 * n : 4 * n])


@pytest.mark.parametrize(("share", "views"), [(0.0, 0), (1.0, 20)])
def test_the_share_of_masked_views(share: float, views: int, rng: np.random.Generator) -> None:
    photo = rng.integers(0, 256, (80, 100, 3), np.uint8)
    batch = inputs([(photo, rng)] * 10, 64, share)
    assert int(batch["masked"].any(axis=(1, 2)).sum()) == views
