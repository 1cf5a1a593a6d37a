"""Photographs that are never trained on, and how well a decoder paints them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from app.camera.images import centre_square, read_image
from app.camera.source import CameraError
from app.camera.tree import find_images
from app.evaluate.painter import Painter
from app.pixels import psnr_db, to_unit
from app.prefetch import usual_workers
from app.progress import Progress
from app.train.photo_set import PhotoSet, file_digest, scan

MOST = 64
"""Photographs that the figures during training are of, evenly spaced; `eval` measures all."""

log = logging.getLogger(__name__)


class HeldOutPhotos:
    """Centre squares of the readable images in a folder and below.

    Unreadable ones are skipped with a warning each. Raises `CameraError` if none is left.
    """

    def __init__(self, folder: Path, size: int) -> None:
        paths = find_images(folder)
        self.digests = {file_digest(path) for path in paths}
        """SHA-256 of all files, measured or not."""
        self.images: list[np.ndarray] = []
        """Those measured: uint8 [size, size, 3]."""
        for path in paths[:: -(-len(paths) // MOST)]:
            try:
                self.images.append(centre_square(read_image(path), size))
            except CameraError as error:
                log.warning("skipped: %s", error)
        if not self.images:
            raise CameraError(f"none of the images in '{folder}' can be decoded")

    def others(self, folder: Path, size: int, progress: Progress) -> PhotoSet:
        """The photographs to learn samples of size x size pixels from: all in a folder but these.

        Raises `CameraError` if there are none.
        """
        photos = scan(
            folder,
            size,
            workers=usual_workers(),
            without=self.digests,
            progress=lambda done, of: progress.update(lambda: f"{done} of {of} images read"),
        )
        progress.say(
            f"{len(photos)} photographs to learn from in {folder}; {len(self.images)} held out"
        )
        return photos

    def psnr_db(self, painter: Painter, decoder: Mapping[str, np.ndarray]) -> tuple[float, float]:
        """PSNR over all pixels, and the median over the images; waits for the device.

        NaN if a painted image is not finite.
        """
        painter.load(decoder)
        errors = []
        for image in self.images:
            original = to_unit(image)
            painted = painter.paint(original).astype(np.float64)
            errors.append(float(np.mean((painted - original) ** 2)))
        if not np.isfinite(errors).all():
            return math.nan, math.nan
        each = [psnr_db(error) for error in errors]
        return psnr_db(float(np.mean(errors))), float(np.median(each))
