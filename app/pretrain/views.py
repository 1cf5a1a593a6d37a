"""Two views of each photograph, what the student does not see of them, and which patches of one
show the same place as which of the other.

Everything but pixels is computed for a whole batch at once, so that threads spend their time in
OpenCV, where they run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from app.camera.source import Image
from app.train.augment import COLOUR_DRAWS, LUMA, Recolouring, colour_matrices
from models.dinov3 import PATCH

VIEWS = 2
"""Of each photograph."""
SMALLEST = 0.4
"""Side of the smallest view, of the photograph's short side."""
RECOLOURED, GREY, BLURRED = 0.8, 0.1, 0.3
"""Shares of the views that have their colours changed, lose them, or are blurred."""
BLUR = (0.3, 1.5)
"""Range of the Gaussian's standard deviation, pixels of the view."""
STRONGEST = Recolouring(contrast=0.4, saturation=0.6, balance=0.2, brightness=0.15)
MASKED = (0.1, 0.5)
"""Range of the share of patches that a masked view lacks."""
LONGEST = 3.0
"""Aspect ratio of the longest block of masked patches."""

Sample = tuple[Image, np.random.Generator]
"""A photograph u8 [height, width, 3], and what its views are drawn with."""


@dataclass(frozen=True)
class Windows:
    """The squares of photographs that views show, each in pixels of its photograph; arrays [n]."""

    left: np.ndarray
    top: np.ndarray
    side: np.ndarray
    mirrored: np.ndarray

    def partners(self) -> Windows:
        """For each window the other one of the same photograph."""
        other = np.arange(len(self.side)) ^ 1
        return Windows(*(v[other] for v in (self.left, self.top, self.side, self.mirrored)))

    def places(self, across: int) -> np.ndarray:
        """Centres of across x across patches in the photograph: (x, y), f64 [n, across^2, 2]."""
        along = (np.arange(across) + 0.5) / across
        y, x = np.repeat(along, across), np.tile(along, across)
        x = np.where(self.mirrored[:, None], 1 - x, x)
        side = self.side[:, None]
        return np.stack([self.left[:, None] + side * x, self.top[:, None] + side * y], -1)

    def patches(self, places: np.ndarray, across: int) -> tuple[np.ndarray, np.ndarray]:
        """The patch at each place (x, y) [n, k, 2] of the photographs, and whether it is shown."""
        side = self.side[:, None]
        x = (places[..., 0] - self.left[:, None]) / side
        y = (places[..., 1] - self.top[:, None]) / side
        inside = (x >= 0) & (x < 1) & (y >= 0) & (y < 1)
        x = np.where(self.mirrored[:, None], 1 - x, x)
        column, row = (np.floor(v * across).astype(int).clip(0, across - 1) for v in (x, y))
        return row * across + column, inside


def random_windows(shapes: np.ndarray, draws: np.ndarray) -> Windows:
    """Squares of random sizes at random places of photographs (height, width) [n, 2].

    `draws` [n, 4] are uniform in 0..1.
    """
    short = shapes.min(axis=1)
    least = np.maximum(1, np.round(SMALLEST * short)).astype(int)
    size, x, y, mirror = draws.T
    side = least + _below(short - least + 1, size)
    height, width = shapes.T
    return Windows(_below(width - side + 1, x), _below(height - side + 1, y), side, mirror < 0.5)


def recolourings(gates: np.ndarray, colours: np.ndarray) -> list[np.ndarray | None]:
    """For each view f32 [3, 4], for `cv2.transform` of bytes; None leaves the colours.

    `gates` [n, 2] and `colours` [n, COLOUR_DRAWS] are uniform in 0..1.
    """
    changed, grey = (gates < (RECOLOURED, GREY)).T
    matrices = np.where(
        changed[:, None, None], colour_matrices(2 * colours - 1, STRONGEST), np.eye(3, 4)
    )
    matrices = np.where(grey[:, None, None], np.tile(LUMA, (3, 1)) @ matrices, matrices)
    matrices[:, :, 3] *= 255
    used = changed | grey
    return [m if u else None for m, u in zip(matrices.astype(np.float32), used, strict=True)]


def random_blocks(across: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Bool [across^2] with that share of patches set, rounded down, in rectangles.

    Never all of them.
    """
    mask = np.zeros((across, across), bool)
    left = min(int(share * across**2), across**2 - 1)
    while left > 0:
        size, shape, down, right = rng.random(4).tolist()
        area = min(left, 4) + size * (left + 1 - min(left, 4))
        stretch = LONGEST ** (shape - 0.5)
        height = min(max(round(math.sqrt(area) * stretch), 1), across)
        width = min(max(round(math.sqrt(area) / stretch), 1), across)
        top, first = int(down * (across - height + 1)), int(right * (across - width + 1))
        block = mask[top : top + height, first : first + width]
        free = np.argwhere(~block)[:left]
        block[free[:, 0], free[:, 1]] = True
        left -= len(free)
    return mask.reshape(-1)


def paint(
    image: Image,
    out: np.ndarray,
    crop: tuple[int, int, int, bool],
    recolour: np.ndarray | None,
    blur: float,
) -> None:
    """What a window (left, top, side, mirrored) shows of a photograph, into u8 [size, size, 3].

    `blur` is the Gaussian's standard deviation, or 0.
    """
    left, top, side, mirrored = crop
    # At most twice shrunk, linear interpolation leaves no pixel out: see `app.train.photo_set`.
    square = image[top : top + side, left : left + side]
    seen = cv2.resize(square, out.shape[:2], interpolation=cv2.INTER_LINEAR)
    if mirrored:
        seen = cv2.flip(seen, 1)
    if recolour is not None:
        seen = cv2.transform(seen, recolour)
    if blur:
        seen = cv2.GaussianBlur(seen, (0, 0), blur)
    out[:] = seen


def inputs(samples: Sequence[Sample], size: int, masked_share: float) -> dict[str, np.ndarray]:
    """What `models.pretraining.pretraining_graph` learns from in one step: two views of each.

    `masked_share` is the share of views that lack patches. A masked patch matches itself, as the
    teacher sees it, any other the patch of the other view. A sample's views depend on nothing but
    the sample.
    """
    across = size // PATCH
    count = VIEWS * len(samples)
    draws = np.concatenate([rng.random((VIEWS, 10 + COLOUR_DRAWS)) for _, rng in samples])
    shapes = np.repeat([image.shape[:2] for image, _ in samples], VIEWS, axis=0)
    windows = random_windows(shapes, draws[:, :4])
    colours = recolourings(draws[:, 4:6], draws[:, 10:])
    blurs = np.where(draws[:, 6] < BLURRED, _between(BLUR, draws[:, 7]), 0)
    shares = np.where(draws[:, 8] < masked_share, _between(MASKED, draws[:, 9]), 0)

    views = np.empty((count, size, size, 3), np.uint8)
    crops = zip(windows.left, windows.top, windows.side, windows.mirrored, strict=True)
    for number, (crop, colour, blur) in enumerate(zip(crops, colours, blurs, strict=True)):
        paint(samples[number // VIEWS][0], views[number], crop, colour, blur)
    masked = np.stack(
        [random_blocks(across, share, samples[k // VIEWS][1]) for k, share in enumerate(shares)]
    )
    there, shown = windows.partners().patches(windows.places(across), across)
    view = np.arange(count)[:, None]
    here = view * across**2 + np.arange(across**2)
    match = np.where(masked, here, (view ^ 1) * across**2 + there)
    return {
        "image": np.multiply(views, np.float32(1 / 255), dtype=np.float32),
        "masked": masked[..., None].astype(np.float32),
        "match": match.reshape(-1).astype(np.uint32),
        "weight": (masked | shown).reshape(-1).astype(np.float32),
    }


def _below(ends: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Integers from 0 up to but without each end."""
    return np.floor(ends * draws).astype(int)


def _between(ends: tuple[float, float], draws: np.ndarray) -> np.ndarray:
    return ends[0] + (ends[1] - ends[0]) * draws
