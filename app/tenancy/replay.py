"""Which image a training step sees: the newest, or an earlier one, so that it does not forget."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import cv2
import numpy as np

from app.camera.source import Frame, Image

EVERY_NS = 500_000_000
"""A camera image is remembered twice a second: neighbours look alike."""

THUMBNAIL = 14
"""Side of what images are compared by, pixels: noise is averaged out."""

ALIKE = 2.0
"""Images whose thumbnails differ by less on average, of 255, are the same view."""


class Replay:
    """The last `capacity` remembered images; `newest_share` of the picks are the newest one.

    One image at a time makes a poor batch: without replay the decoder follows the current
    picture's colours and forgets the others. A view that is remembered is not remembered again, so
    a camera that stands still does not push out what it saw before. `rehearsed` is never pushed
    out: variety that the camera has not shown yet, and what a trained decoder shall not forget.
    """

    def __init__(
        self,
        capacity: int = 128,
        newest_share: float = 0.25,
        seed: int = 0,
        rehearsed: Sequence[Image] = (),
    ) -> None:
        self._remembered: deque[Image] = deque(maxlen=capacity)
        self._thumbnails: deque[np.ndarray] = deque(maxlen=capacity)
        self._rehearsed = rehearsed
        self._newest_share = newest_share
        self._random = Random(seed)
        self._looked_ns = -EVERY_NS

    def pick(self, newest: Frame) -> Image:
        """Remember `newest` if it is due and new, and choose what to train on."""
        if not self._remembered or newest.captured_ns - self._looked_ns >= EVERY_NS:
            self._looked_ns = newest.captured_ns
            self._remember(newest.image)
        if self._random.random() < self._newest_share:
            return newest.image
        drawn = self._random.randrange(len(self._rehearsed) + len(self._remembered))
        known = drawn < len(self._rehearsed)
        return self._rehearsed[drawn] if known else self._remembered[drawn - len(self._rehearsed)]

    def _remember(self, image: Image) -> None:
        small = cv2.resize(image, (THUMBNAIL, THUMBNAIL), interpolation=cv2.INTER_AREA)
        if self._thumbnails:
            apart = np.abs(np.stack(self._thumbnails) - small).mean(axis=(1, 2, 3))
            if apart.min() < ALIKE:
                return
        self._remembered.append(image)
        self._thumbnails.append(small.astype(np.float32))
