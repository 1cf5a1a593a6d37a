"""Image files: finding, decoding, squaring, and decoding ahead of need."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from app.camera.source import CameraError, Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".avif"})

log = logging.getLogger(__name__)


def list_images(folder: Path) -> list[Path]:
    """The image files directly inside `folder`, by name. Raises `CameraError` if there are none."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise CameraError(f"cannot read folder '{folder}': {error.strerror}") from error
    paths = [
        path
        for path in entries
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    ]
    if not paths:
        raise CameraError(f"no images in '{folder}': put .jpg, .png or .webp files directly in it")
    return paths


def read_image(path: Path) -> Image:
    """Decode a file to 8-bit RGB, upright. Raises `CameraError` if it cannot be decoded."""
    try:
        # Decoding from memory: cv2.imread fails on non-ASCII paths under Windows.
        data = np.frombuffer(path.read_bytes(), np.uint8)
        decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)
    except OSError as error:
        raise CameraError(f"cannot read image '{path}': {error.strerror}") from error
    except cv2.error as error:
        raise CameraError(f"cannot decode image '{path}': {error.err}") from error
    if decoded is None:
        raise CameraError(f"cannot decode image '{path}': damaged, or not an image")
    return bgr_to_rgb(decoded)


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
