"""Keeping the interpreter out of the frame loop's way."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cv2

SWITCH_INTERVAL_S = 0.0005
"""Other threads may hold the interpreter for this long when the loop wakes up; 5 ms by default."""


@contextmanager
def punctual_python() -> Iterator[None]:
    """No automatic garbage collection, and threads that hand the interpreter over quickly."""
    interval, threads = sys.getswitchinterval(), cv2.getNumThreads()
    # A pool of threads as wide as the machine, for images of 224 pixels, only takes cores away.
    cv2.setNumThreads(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        cv2.setNumThreads(threads)
        gc.enable()
        gc.unfreeze()


def collect_young() -> None:
    """Collect the youngest garbage only: a full collection takes longer than a frame may."""
    gc.collect(0)
