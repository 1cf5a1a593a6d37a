"""Image files: finding, decoding, squaring, and decoding ahead of need."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from app.camera.source import CameraError, Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".avif"})

PNG = b"\x89PNG\r\n\x1a\n"

log = logging.getLogger(__name__)


def list_images(folder: Path) -> list[Path]:
    """The image files directly inside `folder`, by name. Raises `CameraError` if there are none."""
    try:
        paths = [
            path
            for path in sorted(folder.iterdir())
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
        ]
    except OSError as error:
        raise CameraError(f"cannot read folder '{folder}': {error.strerror}") from error
    if not paths:
        raise CameraError(f"no images in '{folder}': put .jpg, .png or .webp files directly in it")
    return paths


def read_image(path: Path) -> Image:
    """Decode a file to 8-bit RGB; transparency is dropped, deeper samples lose their low bits.

    JPEG, PNG, WebP and TIFF are turned upright as their EXIF data say. Raises `CameraError` if the
    file cannot be decoded.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CameraError(f"cannot read image '{path}': {error.strerror}") from error
    if not data:
        raise CameraError(f"cannot decode image '{path}': the file is empty")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        # Decoding from memory: cv2.imread fails on non-ASCII paths under Windows.
        decoded = None
        if not data.startswith(PNG) or _whole_png(data):
            decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        reason = error.err.partition("\n")[0]
        raise CameraError(f"cannot decode image '{path}': too large? ({reason})") from error
    if decoded is None:
        raise CameraError(
            f"cannot decode image '{path}': damaged, not an image, or of an unknown kind: "
            "try an 8-bit .jpg or .png"
        )
    return bgr_to_rgb(decoded)


def _whole_png(data: bytes) -> bool:
    """Whether all critical chunks are there and match their checksums.

    OpenCV gives half-decoded images back, and its PNG library writes to stderr.
    """
    view, at = memoryview(data), len(PNG)
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(view[at : at + 4], "big")
        kind, checksum = bytes(view[at + 4 : at + 8]), int.from_bytes(view[end - 4 : end], "big")
        critical = kind[:1].isupper()
        if end > len(data) or (critical and zlib.crc32(view[at + 4 : end - 4]) != checksum):
            return False
        if kind == b"IEND":
            return True
        at = end
    return False


def bgr_to_rgb(image: cv2.typing.MatLike) -> Image:
    """Reorder OpenCV's channels."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def resize(image: Image, width: int, height: int) -> Image:
    """Resize to width x height pixels, averaging areas when shrinking."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = width * height < image.shape[0] * image.shape[1]
    filter_ = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=filter_), np.uint8)


def centre_square(image: Image, size: int) -> Image:
    """The largest centred square of an RGB image as uint8 [size, size, 3], contiguous."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    crop = image[top : top + side, left : left + side]
    return np.ascontiguousarray(resize(crop, size, size))


class ImageSet:
    """Image files decoded in a background thread, the last few kept, bad ones reported once.

    `prepare` turns a decoded image into what is kept, in the same thread. Use from one thread.
    """

    KEPT = 5

    def __init__(self, paths: Sequence[Path], prepare: Callable[[Image], Image]) -> None:
        self._paths = paths
        self._prepare = prepare
        self._bad: set[int] = set()
        self._pending: dict[int, Future[Image]] = {}
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="images")

    def __len__(self) -> int:
        return len(self._paths)

    def prefetch(self, index: int) -> None:
        """Start to decode image `index` (modulo the length) unless it is at hand."""
        index %= len(self._paths)
        if index in self._bad:
            return
        # Popped and put back, so that the dict's order is that of last use.
        future = self._pending.pop(index, None) or self._pool.submit(self._load, index)
        self._pending[index] = future
        if len(self._pending) > self.KEPT:
            self._pending.pop(next(iter(self._pending))).cancel()

    def get(self, index: int) -> Image | None:
        """Image `index` (modulo the length), waiting if need be; None if it is unreadable."""
        index %= len(self._paths)
        self.prefetch(index)
        if index in self._bad:
            return None
        try:
            return self._pending[index].result()
        except CameraError as error:
            log.warning("skipped: %s", error)
            self._bad.add(index)
            del self._pending[index]
            return None

    def none_readable(self) -> CameraError:
        """The error to raise when every image has turned out unreadable."""
        folder = os.path.dirname(self._paths[0])
        return CameraError(f"none of the {len(self)} images in '{folder}' can be decoded")

    def close(self) -> None:
        """Stop the background thread; safe to call twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _load(self, index: int) -> Image:
        return self._prepare(read_image(self._paths[index]))
