"""Photographs as one array, for training and for measuring."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from app.camera.images import centre_square, list_images, read_image
from app.camera.source import CameraError, Image
from assets import photos_dir

log = logging.getLogger(__name__)


def load_photos(folder: Path, size: int = 224) -> Image:
    """Every image directly inside `folder`, by name: centre squares, uint8 [n, size, size, 3].

    Unreadable ones are skipped with a warning each. Raises `CameraError` if none is left.
    """
    squares = []
    for path in list_images(folder):
        try:
            squares.append(centre_square(read_image(path), size))
        except CameraError as error:
            log.warning("skipped: %s", error)
    if not squares:
        raise CameraError(f"none of the images in '{folder}' can be decoded")
    return np.stack(squares)


def held_out(size: int = 224, folder: Path | None = None) -> Image:
    """The validation photographs, never trained on: uint8 RGB [n, size, size, 3], by name."""
    return load_photos(folder or photos_dir() / "val", size)
