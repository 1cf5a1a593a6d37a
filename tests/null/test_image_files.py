"""Image files of every kind that people have: decoded, or one clear line."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from pictures import close_to, solid, write
from PIL import Image

from app.camera import CameraError, load_photos, open_camera
from app.camera.images import centre_square, list_images, read_image

HEIGHT, WIDTH = 24, 40


@pytest.fixture
def gradient() -> np.ndarray:
    """An image without any symmetry, uint8 RGB."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([6 * x, 10 * y, 3 * x + 4 * y], axis=2).astype(np.uint8)


def complaint(path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(CameraError) as caught:
        read_image(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    assert capfd.readouterr().err == ""
    return message


# -- decoded --


def test_cmyk_jpeg(gradient: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "print.jpg"
    Image.fromarray(gradient).convert("CMYK").save(path, quality=95)
    with Image.open(path) as image:
        assert image.mode == "CMYK"
    assert np.abs(read_image(path).astype(int) - gradient).mean() < 3


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation(suffix: str, orientation: int, gradient: np.ndarray, tmp_path: Path) -> None:
    path, exif = tmp_path / f"phone{suffix}", Image.Exif()
    exif[0x0112] = orientation
    options = {
        ".jpg": {"quality": 95, "subsampling": 0, "exif": exif},
        ".png": {"exif": exif},
        ".webp": {"lossless": True, "exif": exif},
        ".tif": {"tiffinfo": {0x0112: orientation}},
    }
    # How the sensor saw what `gradient` shows upright, by the eight cases of the EXIF standard.
    turned = {
        1: gradient,
        2: gradient[:, ::-1],
        3: gradient[::-1, ::-1],
        4: gradient[::-1],
        5: gradient.transpose(1, 0, 2),
        6: np.rot90(gradient, 1),
        7: np.rot90(gradient.transpose(1, 0, 2), 2),
        8: np.rot90(gradient, -1),
    }
    Image.fromarray(np.ascontiguousarray(turned[orientation])).save(path, **options[suffix])
    image = read_image(path)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(image.astype(int) - gradient).mean() < (3 if suffix == ".jpg" else 0.01)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bits(suffix: str, gradient: np.ndarray, tmp_path: Path) -> None:
    deep = gradient.astype(np.uint16) * 256 + 17
    path = write(tmp_path / f"deep{suffix}", deep)
    assert np.abs(read_image(path).astype(int) - gradient).max() <= 1


def test_transparency_is_dropped(gradient: np.ndarray, tmp_path: Path) -> None:
    alpha = np.arange(gradient[:, :, 0].size, dtype=np.uint8).reshape(HEIGHT, WIDTH, 1)
    for name, image in {
        "rgba.png": np.concatenate([gradient, alpha], axis=2),
        "rgba16.png": np.concatenate([gradient, alpha], axis=2).astype(np.uint16) * 257,
    }.items():
        assert np.array_equal(read_image(write(tmp_path / name, image)), gradient), name


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P"])
def test_grey_and_palette(mode: str, gradient: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "few.png"
    image = Image.fromarray(gradient).convert(mode)
    image.save(path)
    assert np.array_equal(read_image(path), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp", ".tif"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1)])
def test_a_pixel_or_a_line(suffix: str, shape: tuple[int, int], tmp_path: Path) -> None:
    colour = (90, 140, 190)
    image = read_image(write(tmp_path / f"thin{suffix}", solid(colour, *shape)))
    assert image.shape == (*shape, 3)
    square = centre_square(image, 32)
    assert square.shape == (32, 32, 3) and close_to(square, colour, 4)


@pytest.mark.parametrize("name", ["Köln 写真 🖼.png", "a b'\"c.jpg", "." * 9 + "x.webp", "é.PNG"])
def test_names_of_any_kind(name: str, tmp_path: Path) -> None:
    path = tmp_path / "Ordner ß" / name
    path.parent.mkdir()
    path.write_bytes(cv2.imencode(path.suffix, solid((90, 90, 90)))[1].tobytes())
    assert close_to(read_image(path), (90, 90, 90), 3)


# -- not decoded --


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp", ".tif"])
def test_truncated_files(
    suffix: str, gradient: np.ndarray, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / f"cut{suffix}", gradient)
    whole = path.read_bytes()
    for length in (1, 12, len(whole) // 3, len(whole) * 2 // 3, len(whole) - 20):
        path.write_bytes(whole[:length])
        assert "damaged" in complaint(path, capfd)
    path.write_bytes(b"")
    assert "the file is empty" in complaint(path, capfd)


def test_every_flipped_byte_of_a_png_is_noticed(
    gradient: np.ndarray, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.png", gradient)
    whole = path.read_bytes()
    for position in range(0, len(whole) - 12, 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x11]) + whole[position + 1 :])
        assert "damaged" in complaint(path, capfd), position


def test_other_contents(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "image.jpg"
    float_tiff = cv2.imencode(".tif", np.ones((4, 4, 3), np.float32))[1].tobytes()
    for content in (b"text " * 50, bytes(1000), b"%PDF-1.7", b"\xff\xd8\xff\xe0", float_tiff):
        path.write_bytes(content)
        assert "damaged, not an image, or of an unknown kind" in complaint(path, capfd)


def test_a_header_that_claims_too_much(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    path = tmp_path / "bomb.png"
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(99)))
        + chunk(b"IEND", b"")
    )
    assert "too large?" in complaint(path, capfd)


def test_missing_files_and_folders(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in complaint(tmp_path / "none.png", capfd)
    (tmp_path / "folder.png").mkdir()
    assert "directory" in complaint(tmp_path / "folder.png", capfd)
    for use in (list_images, load_photos, lambda path: open_camera(str(path))):
        with pytest.raises(CameraError, match=r"no images in '.*': put \.jpg, \.png or \.webp"):
            use(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_dangling_links_and_loops_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    with pytest.raises(CameraError, match="no images in"):
        list_images(tmp_path)


def test_the_suffix_does_not_decide(gradient: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(gradient).save(path, "JPEG", progressive=True, quality=95, subsampling=0)
    assert np.abs(read_image(path).astype(int) - gradient).mean() < 3
