import csv
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import BLUE, RED, close_to, solid, write

from app.camera import CameraError, held_out, load_photos
from app.camera.images import ImageSet, centre_square, list_images, read_image
from assets import photos_dir

# --- the photographs that ship ---


def test_attribution_lists_exactly_the_photographs() -> None:
    root = photos_dir()
    with open(root / "ATTRIBUTION.csv", encoding="utf-8", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    files = [path for part in ("train", "val") for path in (root / part).iterdir()]
    assert {path.relative_to(root).as_posix() for path in files} == set(rows)
    free = ("cc0", "public-domain", "public domain")
    assert all(row["licence"].lower().startswith(free) for row in rows.values())
    assert all(row["package"] and row["inner_path"] for row in rows.values())
    for path in files:
        row = rows[path.relative_to(root).as_posix()]
        assert read_image(path).shape == (int(row["height"]), int(row["width"]), 3)


def test_no_validation_photograph_is_a_training_photograph() -> None:
    def tiny(part: str) -> np.ndarray:
        grey = load_photos(photos_dir() / part, 16).mean(axis=3).reshape(-1, 256)
        grey -= grey.mean(axis=1, keepdims=True)
        return grey / np.linalg.norm(grey, axis=1, keepdims=True)

    assert (tiny("val") @ tiny("train").T).max() < 0.9


def test_held_out_is_val_unless_another_folder_is_named(tmp_path: Path) -> None:
    photos = held_out(32)
    assert photos.shape == (15, 32, 32, 3) and photos.dtype == np.uint8
    assert np.array_equal(photos, load_photos(photos_dir() / "val", 32))
    write(tmp_path / "a.png", solid(RED))
    assert close_to(held_out(8, tmp_path)[0], RED, 0)


def test_load_photos_skips_bad_files_and_fails_without_good_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"")
    with pytest.raises(CameraError, match="none of the images"):
        load_photos(tmp_path)
    caplog.clear()
    write(tmp_path / "good.png", solid(BLUE))
    assert load_photos(tmp_path, 4).shape == (1, 4, 4, 3)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# --- decoding and squaring ---


def test_every_kind_of_image_becomes_8_bit_rgb(tmp_path: Path) -> None:
    write(tmp_path / "grey.png", np.full((9, 7), 90, np.uint8))
    write(tmp_path / "deep.png", np.full((9, 7), 90 * 257, np.uint16))
    write(tmp_path / "deep_rgb.png", np.full((9, 7, 3), 90 * 257, np.uint16))
    write(tmp_path / "alpha.png", np.full((9, 7, 4), (90, 90, 90, 128), np.uint8))
    write(tmp_path / "写真 é.png", np.full((9, 7, 3), 90, np.uint8))
    paths = list_images(tmp_path)
    assert len(paths) == 5
    for path in paths:
        image = read_image(path)
        assert image.dtype == np.uint8 and image.shape == (9, 7, 3), path.name
        assert close_to(image, (90, 90, 90), 1), path.name


def test_channels_are_in_rgb_order(tmp_path: Path) -> None:
    assert close_to(read_image(write(tmp_path / "a.png", solid(RED))), RED, 0)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_centre_square_is_square_centred_and_contiguous(h: int, w: int, size: int) -> None:
    side = min(h, w)
    image = np.zeros((h, w, 3), np.uint8)
    top, left = (h - side) // 2, (w - side) // 2
    image[top : top + side, left : left + side] = 200
    square = centre_square(image, size)
    assert square.shape == (size, size, 3) and square.flags.c_contiguous
    assert square.min() == 200


def test_list_images_ignores_what_is_no_image(tmp_path: Path) -> None:
    write(tmp_path / "b.PNG", solid(RED))
    write(tmp_path / "a.jpg", solid(RED))
    write(tmp_path / ".hidden.png", solid(RED))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in list_images(tmp_path)] == ["a.jpg", "b.PNG"]


def test_image_set_keeps_few_and_decodes_ahead(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i:02}.png", solid((i, i, i))) for i in range(9)]
    decoded = []
    images = ImageSet(paths, lambda image: decoded.append(int(image[0, 0, 0])) or image)
    images.prefetch(1)
    for i in (0, 1, 0, 1, 10):
        image = images.get(i)
        assert image is not None and image[0, 0, 0] == i % 9
    assert decoded == [1, 0]  # 10 is image 1 again
    for i in range(2, 9):
        images.get(i)
    images.get(0)
    assert decoded == [1, 0, 2, 3, 4, 5, 6, 7, 8, 0]
    images.close()
