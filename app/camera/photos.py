"""Photographs as one array, for training and for measuring."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from app.camera.images import centre_square, list_images, read_image
from app.camera.source import CameraError, Image
from assets import photos_dir

REHEARSED_OF = 3
"""One photograph of so many is rehearsed: enough not to forget, and soon loaded."""

log = logging.getLogger(__name__)


def load_photos(folder: Path, size: int = 224, every: int = 1) -> Image:
    """Images directly inside `folder`, by name: centre squares, uint8 [n, size, size, 3].

    All of them, or one of `every`. Unreadable ones are skipped with a warning each. Raises
    `CameraError` if none is left.
    """
    squares = []
    for path in list_images(folder)[::every]:
        try:
            squares.append(centre_square(read_image(path), size))
        except CameraError as error:
            log.warning("skipped: %s", error)
    if not squares:
        raise CameraError(f"none of the images in '{folder}' can be decoded")
    return np.stack(squares)


def rehearsed(size: int = 224) -> list[Image]:
    """Some of the shipped photographs, never held-out ones: uint8 RGB [size, size, 3], by name."""
    return list(load_photos(photos_dir() / "train", size, REHEARSED_OF))


def held_out(size: int = 224, folder: Path | None = None) -> Image:
    """The validation photographs, never trained on: uint8 RGB [n, size, size, 3], by name."""
    return load_photos(folder or photos_dir() / "val", size)
