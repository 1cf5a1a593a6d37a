"""The default camera: a slow pan and zoom over photographs, cross-fading from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from app.camera.images import ImageSet, list_images, resize
from app.camera.source import Image

SECONDS_PER_PHOTO = 5.0
FADE_SECONDS = 1.2
MAX_ASPECT = 2.5
"""Longer photographs lose their ends, or the pan would race."""


@dataclass(frozen=True)
class Motion:
    """A straight pan and zoom: the square crop at the start and at the end of a photo's time.

    `sides` are fractions of the short side; `starts` and `ends` place the crop as fractions of
    the room left to it in x and y, so that every crop lies inside the photo.
    """

    sides: tuple[float, float]
    starts: tuple[float, float]
    ends: tuple[float, float]

    @staticmethod
    def draw(seed: int, slot: int) -> Motion:
        """The motion of the photo shown `slot`-th, the same for the same seed."""
        rng = np.random.default_rng((seed, slot))
        wide, tight = rng.uniform(0.9, 1.0), rng.uniform(0.65, 0.75)
        sides = (wide, tight) if rng.random() < 0.5 else (tight, wide)
        x, y = rng.uniform(0.1, 0.9, 2)
        return Motion(sides, (x, y), (1 - x, 1 - y))

    def crop(self, progress: float, width: int, height: int) -> tuple[float, float, float]:
        """Left, top and side in pixels at `progress` in [0, 1] of a width x height photo."""
        side = min(width, height) * _mix(self.sides[0], self.sides[1], progress)
        left = (width - side) * _mix(self.starts[0], self.ends[0], progress)
        top = (height - side) * _mix(self.starts[1], self.ends[1], progress)
        return left, top, side


class PhotoWalk:
    """A `CameraSource` over a folder's photographs, in seeded random order, without end.

    Raises `CameraError` when the folder has no images or none can be decoded.
    """

    name = "photos"
    fps = 30.0

    def __init__(self, folder: Path, size: int = 224, seed: int = 0) -> None:
        paths = list_images(folder)
        self.size = size
        self._seed = seed
        order = np.random.default_rng(seed).permutation(len(paths))
        self._photos = ImageSet([paths[i] for i in order], self._working_copy)
        self._reads = 0
        try:
            self._photo(0)
        except BaseException:
            self.close()
            raise

    def read(self) -> Image:
        """The next image, 1/fps seconds after the one before."""
        image = self.image_at(self._reads / self.fps)
        self._reads += 1
        return image

    def image_at(self, t_seconds: float) -> Image:
        """The image at a time >= 0: uint8 RGB [size, size, 3], a smooth function of time."""
        slot = int(t_seconds // SECONDS_PER_PHOTO)
        since = t_seconds - slot * SECONDS_PER_PHOTO
        image = self._view(slot, since)
        if slot > 0 and since < FADE_SECONDS:
            weight = _smoothstep(since / FADE_SECONDS)
            before = self._view(slot - 1, since + SECONDS_PER_PHOTO)
            blend = cv2.addWeighted(image, weight, before, 1 - weight, 0)
            image = np.asarray(blend, np.uint8)
        self._photos.prefetch(slot + 1)
        return image

    def close(self) -> None:
        """Stop loading ahead; safe to call twice."""
        self._photos.close()

    def _view(self, slot: int, since: float) -> Image:
        photo = self._photo(slot)
        progress = since / (SECONDS_PER_PHOTO + FADE_SECONDS)
        height, width = photo.shape[:2]
        left, top, side = Motion.draw(self._seed, slot).crop(progress, width, height)
        return _sample(photo, left, top, side, self.size)

    def _photo(self, slot: int) -> Image:
        # A bad photo is replaced from the far side of the order, so that no neighbour shows twice.
        far = slot + len(self._photos) // 2
        for index in (slot, *range(far, far + len(self._photos))):
            photo = self._photos.get(index)
            if photo is not None:
                return photo
        raise self._photos.none_readable()

    def _working_copy(self, photo: Image) -> Image:
        """Trim very long photos; shrink so that no crop is sampled coarser than its pixels."""
        height, width = photo.shape[:2]
        longest = int(MAX_ASPECT * min(height, width))
        top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
        photo = photo[top : top + longest, left : left + longest]
        height, width = photo.shape[:2]
        scale = min(1.0, 2 * self.size / min(height, width))
        return resize(photo, round(width * scale), round(height * scale))


def _sample(photo: Image, left: float, top: float, side: float, size: int) -> Image:
    """A square crop at sub-pixel position, sampled at twice `size` and averaged down."""
    step = side / (2 * size)
    # Pixel centres lie at half-integers of the crop, at integers in OpenCV.
    inverse = np.array([[step, 0, left + step / 2 - 0.5], [0, step, top + step / 2 - 0.5]])
    fine = cv2.warpAffine(
        photo,
        inverse,
        (2 * size, 2 * size),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return resize(np.asarray(fine, np.uint8), size, size)


def _mix(start: float, end: float, amount: float) -> float:
    return start + (end - start) * amount


def _smoothstep(x: float) -> float:
    return x * x * (3 - 2 * x)
