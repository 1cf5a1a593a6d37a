"""What train learns from: files found and checked, samples that depend on seed and number only."""

import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import BLUE, GREEN, RED, solid, write

from app.camera import CameraError
from app.camera.tree import find_images
from app.prefetch import Prefetch
from app.train.augment import augmented
from app.train.held_out import HeldOutPhotos
from app.train.photo_set import PhotoSet, file_digest, scan

Warnings = pytest.LogCaptureFixture


def textured(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    return rng.integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Five photographs of different shapes, one of them two folders down."""
    shapes = [(40, 60), (64, 33), (20, 20), (16, 90), (200, 150)]
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for k, shape in enumerate(shapes):
        place = tmp_path / "deep" / "er" if k == 3 else tmp_path
        write(place / f"{k}.png", textured(rng, *shape))
    return tmp_path


# --- finding ---


def test_images_are_found_at_any_depth_in_order(tmp_path: Path) -> None:
    for name in ("b/x.PNG", "b.png", "a/z.jpeg", "a/sub/y.webp", "ä ü/é.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in (".hidden.png", "notes.txt", ".git/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    names = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert names == ["a/sub/y.webp", "a/z.jpeg", "b/x.PNG", "b.png", "ä ü/é.jpg"]


def test_nothing_found_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CameraError, match=r"no images in '.*' or below: put \.jpg"):
        find_images(tmp_path)
    with pytest.raises(CameraError, match=r"cannot read folder '.*absent': No such file"):
        find_images(tmp_path / "absent")
    write(tmp_path / "x.png", solid(RED))
    with pytest.raises(CameraError, match=r"cannot read folder '.*x\.png': Not a directory"):
        find_images(tmp_path / "x.png")


# --- augmentation ---


@settings(max_examples=60)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_a_sample_is_in_range_whatever_the_photograph(
    height: int, width: int, size: int, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    before = image.copy()
    sample = augmented(image, np.random.default_rng(seed), size)
    assert sample.shape == (size, size, 3) and sample.dtype == np.float32
    assert sample.flags.c_contiguous and 0 <= sample.min() and sample.max() <= 1
    assert np.array_equal(image, before)


def test_samples_vary_in_place_side_and_colour(rng: np.random.Generator) -> None:
    """A ramp in x tells the square's left and right edge and the mirroring of grey samples."""
    ramp = np.repeat(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 256, 0), 3, 2)
    plain = grey = mirrored = 0
    spans = []
    for _ in range(300):
        sample = augmented(ramp, rng, 32)
        line = sample.mean(axis=(0, 2)) * 255
        grey += bool(np.allclose(sample[..., 0], sample[..., 2], atol=1e-6))
        mirrored += line[0] > line[-1]
        slope = abs(line[20] - line[12]) / 8
        exact = 255 * sample[0, :, 0]
        if np.allclose(exact, np.round(exact), atol=1e-3):
            plain += 1
            spans.append(slope * 32)
    assert 110 < mirrored < 190
    assert 30 < plain < 100 and grey < 150
    assert min(spans) < 150 and max(spans) > 230 and min(spans) > 100


# --- the set ---


def test_a_sample_depends_on_seed_and_number_only(folder: Path) -> None:
    photos = scan(folder, 16, workers=2)
    wanted = [photos.sample(7, k) for k in range(12)]
    assert len({sample.tobytes() for sample in wanted}) == 12
    again = scan(folder, 16, workers=1, cache_bytes=0)
    assert all(photo.image is None for photo in again.photos)
    assert all(photo.image is not None for photo in photos.photos)
    for k in (11, 0, 5):
        assert np.array_equal(again.sample(7, k), wanted[k])
        assert not np.array_equal(again.sample(8, k), wanted[k])
    assert np.array_equal(photos.batch(7, 4, 3), np.stack(wanted[4:7]))
    assert photos.fingerprint == again.fingerprint


def test_every_photograph_comes_once_an_epoch_in_changing_order(tmp_path: Path) -> None:
    colours = np.random.default_rng(1).permutation(256)[:20]
    for k, level in enumerate(colours):
        write(tmp_path / f"{k:02}.png", solid((level, level, level), 8, 8))
    photos = scan(tmp_path, 16, workers=2)
    orders = [[int(photos._order(3, epoch)[k]) for k in range(20)] for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != list(range(20))


def test_the_cache_is_bounded_and_large_photographs_are_shrunk(folder: Path) -> None:
    everything = scan(folder, 16, workers=2)
    sizes = [photo.image.nbytes for photo in everything.photos if photo.image is not None]
    assert len(sizes) == 5
    # 200 x 150 pixels, of which a sample of 16 needs a short side of 32.
    largest = next(p.image for p in everything.photos if p.path.name == "4.png")
    assert largest is not None and largest.shape == (43, 32, 3)
    half = scan(folder, 16, workers=2, cache_bytes=sum(sizes) // 2)
    kept = sum(photo.image.nbytes for photo in half.photos if photo.image is not None)
    assert 0 < kept <= sum(sizes) // 2


def test_unreadable_and_held_out_files_are_left_out(folder: Path, caplog: Warnings) -> None:
    (folder / "bad.jpg").write_bytes(b"no image")
    out = file_digest(folder / "1.png")
    told: list[tuple[int, int]] = []
    photos = scan(
        folder, 16, workers=2, without={out}, progress=lambda done, of: told.append((done, of))
    )
    assert [photo.path.name for photo in photos.photos] == ["0.png", "2.png", "4.png", "3.png"]
    assert told[-1] == (6, 6) and len(told) == 6
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "bad.jpg" in caplog.records[0].getMessage()
    everything = {file_digest(path) for path in find_images(folder)}
    with pytest.raises(CameraError, match=r"none of the 6 images in '.*' can be trained on"):
        scan(folder, 16, workers=2, without=everything)


def test_the_fingerprint_is_of_contents(tmp_path: Path) -> None:
    def fingerprint(*colours: tuple[int, int, int]) -> str:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        for k, colour in enumerate(colours):
            write(place / f"{place.name}-{k}.png", solid(colour))
        return scan(place, 16, workers=1).fingerprint

    assert fingerprint(RED, BLUE) == fingerprint(RED, BLUE)
    assert len({fingerprint(RED, BLUE), fingerprint(RED, GREEN), fingerprint(RED)}) == 3


def test_held_out_measures_some_and_knows_all(tmp_path: Path, caplog: Warnings) -> None:
    for k in range(130):
        write(tmp_path / f"{k:03}.png", solid((k, k, k), 4, 4))
    (tmp_path / "000.png").write_bytes(b"damaged")
    held_out = HeldOutPhotos(tmp_path, 16)
    assert len(held_out.digests) == 130
    assert len(held_out.images) == 43 and len(caplog.records) == 1
    assert all(image.shape == (16, 16, 3) for image in held_out.images)


# --- prefetching ---


def test_values_come_in_order_whatever_the_threads_do() -> None:
    def slow_when_even(k: int) -> int:
        time.sleep(0.004 if k % 2 == 0 else 0)
        return k * k

    with Prefetch(slow_when_even, range(40), workers=4) as values:
        assert list(values) == [k * k for k in range(40)]


def test_only_so_much_is_made_ahead() -> None:
    made = []
    with Prefetch(lambda k: made.append(k), range(1000), workers=2) as values:
        next(iter(values))
    assert len(made) <= 2 + 4


def test_an_error_is_raised_where_it_is_due_and_threads_end() -> None:
    def fail_at_three(k: int) -> int:
        if k == 3:
            raise CameraError("unplugged")
        return k

    got = []
    with (
        pytest.raises(CameraError, match="unplugged"),
        Prefetch(fail_at_three, range(9), workers=2) as values,
    ):
        for value in values:
            got.append(value)
    assert got == [0, 1, 2]
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


def test_batches_are_the_same_for_any_number_of_threads(folder: Path) -> None:
    photos: PhotoSet = scan(folder, 16, workers=2)
    results = []
    for workers in (1, 5):
        with Prefetch(lambda k: photos.batch(1, 2 * k, 2), range(8), workers) as batches:
            results.append(np.stack(list(batches)))
    assert np.array_equal(*results)
