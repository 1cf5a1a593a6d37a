"""An image folder as a camera: each image for a few seconds, in name order, over and over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from app.camera.images import ImageSet, centre_square
from app.camera.source import Image

SECONDS_PER_IMAGE = 3.0


class ImageFolder:
    """A `CameraSource` over image files. Raises `CameraError` if none of them can be decoded."""

    fps = 30.0

    def __init__(self, name: str, paths: Sequence[Path], size: int = 224) -> None:
        self.name = name
        self._images = ImageSet(paths, partial(centre_square, size=size))
        self._index = -1
        self._reads = 0
        try:
            self._current = self._advance()
        except BaseException:
            self.close()
            raise

    def read(self) -> Image:
        """The image of the moment, uint8 RGB [size, size, 3]."""
        if self._reads == round(SECONDS_PER_IMAGE * self.fps):
            self._current = self._advance()
            self._reads = 0
        self._reads += 1
        return self._current

    def close(self) -> None:
        """Stop loading ahead; safe to call twice."""
        self._images.close()

    def _advance(self) -> Image:
        for _ in range(len(self._images)):
            self._index = (self._index + 1) % len(self._images)
            image = self._images.get(self._index)
            if image is not None:
                self._images.prefetch(self._index + 1)
                return image
        raise self._images.none_readable()
