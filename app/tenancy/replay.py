"""Which image a training step sees: the newest, or a recent one, so that it does not forget."""

from __future__ import annotations

from collections import deque
from random import Random

from app.camera.source import Frame

EVERY_NS = 500_000_000
"""A camera image is remembered twice a second: neighbours look alike."""


class Replay:
    """The last `capacity` remembered images; `newest_share` of the picks are the newest one.

    One image at a time makes a poor batch: without replay the decoder follows the current
    picture's colours and forgets the others.
    """

    def __init__(self, capacity: int = 128, newest_share: float = 0.25, seed: int = 0) -> None:
        self._frames: deque[Frame] = deque(maxlen=capacity)
        self._newest_share = newest_share
        self._random = Random(seed)

    def pick(self, newest: Frame) -> Frame:
        """Remember `newest` if it is due, and choose what to train on."""
        if not self._frames or newest.captured_ns - self._frames[-1].captured_ns >= EVERY_NS:
            self._frames.append(newest)
        if self._random.random() < self._newest_share:
            return newest
        return self._random.choice(self._frames)
