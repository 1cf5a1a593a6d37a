"""The photographs to learn from: found, checked and decoded once, and who each sample is."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from app.camera.images import read_image, resize
from app.camera.source import CameraError, Image
from app.camera.tree import find_images
from app.digests import file_sha256
from app.train.augment import augmented

CACHE_BYTES = 2 << 30
"""Decoded photographs that are kept; beyond, files are decoded again each time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Photo:
    """One readable file: its SHA-256, and its pixels unless the cache was full."""

    path: Path
    digest: str
    image: Image | None = field(repr=False)


class PhotoSet:
    """Photographs and the endless sequence of samples drawn from them.

    Sample i depends on (seed, i), the photographs and the size only: not on threads, batches or
    what was asked before. Every photograph comes once in each epoch, in an order of its own.
    May be used from several threads.
    """

    def __init__(self, photos: Sequence[Photo], size: int) -> None:
        self.photos, self.size = photos, size
        self._order = lru_cache(maxsize=4)(self._draw_order)

    def __len__(self) -> int:
        return len(self.photos)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the contents of all files, in order; names do not matter."""
        return hashlib.sha256("".join(photo.digest for photo in self.photos).encode()).hexdigest()

    def image(self, place: int) -> Image:
        """The photograph at a place of the set; decoded anew if the cache was full."""
        photo = self.photos[place]
        return _decode(photo.path, self.size) if photo.image is None else photo.image

    def draw(self, seed: int, number: int) -> tuple[Image, np.random.Generator]:
        """The photograph of sample `number`, from 0, and the sample's own random numbers."""
        epoch, place = divmod(number, len(self.photos))
        image = self.image(self._order(seed, epoch)[place])
        return image, np.random.default_rng([seed, 1, number])

    def sample(self, seed: int, number: int) -> np.ndarray:
        """Sample `number`, from 0: f32 [size, size, 3] in 0..1."""
        return augmented(*self.draw(seed, number), self.size)

    def batch(self, seed: int, first: int, count: int) -> np.ndarray:
        """Samples `first` to `first + count - 1`: f32 [count, size, size, 3]."""
        return np.stack([self.sample(seed, first + k) for k in range(count)])

    def _draw_order(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, 0, epoch]).permutation(len(self.photos))


def scan(
    folder: Path,
    size: int,
    *,
    workers: int,
    without: Collection[str] = (),
    cache_bytes: int = CACHE_BYTES,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> PhotoSet:
    """The photographs in `folder` and below, all decoded once to see that they can be.

    Unreadable files are skipped with a warning each, and files whose SHA-256 is in `without`
    silently. Raises `CameraError` if nothing is left. `progress` hears of every file.
    """
    paths = find_images(folder)
    photos: list[Photo] = []
    free = cache_bytes
    with ThreadPoolExecutor(workers, thread_name_prefix="scan") as pool:
        for done, (path, digest, image) in enumerate(_decoded(pool, paths, size), start=1):
            progress(done, len(paths))
            if image is None or digest in without:
                continue
            kept = image.nbytes <= free
            free -= image.nbytes if kept else 0
            photos.append(Photo(path, digest, image if kept else None))
    if not photos:
        raise CameraError(f"none of the {len(paths)} images in '{folder}' can be trained on")
    return PhotoSet(photos, size)


def file_digest(path: Path) -> str:
    """SHA-256 of a file. Raises `CameraError` if it cannot be read."""
    try:
        return file_sha256(path)
    except OSError as error:
        raise CameraError(f"cannot read image '{path}': {error.strerror}") from error


AHEAD = 64
"""Files handed to the threads at a time, so that a large data set is not decoded all at once."""


def _decoded(
    pool: ThreadPoolExecutor, paths: Sequence[Path], size: int
) -> Iterator[tuple[Path, str, Image | None]]:
    """Path, digest and pixels of each file in order; None where there are none."""

    def load(path: Path) -> tuple[Path, str, Image | None]:
        try:
            return path, file_digest(path), _decode(path, size)
        except CameraError as error:
            log.warning("skipped: %s", error)
            return path, "", None

    for first in range(0, len(paths), AHEAD):
        yield from pool.map(load, paths[first : first + AHEAD])


def _decode(path: Path, size: int) -> Image:
    """A photograph whose short side is at most twice the sample's: more would only be averaged."""
    image = read_image(path)
    height, width = image.shape[:2]
    scale = 2 * size / min(height, width)
    if scale >= 1:
        return image
    return resize(image, max(2 * size, round(width * scale)), max(2 * size, round(height * scale)))
