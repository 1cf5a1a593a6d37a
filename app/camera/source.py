"""What a camera is to the rest of the app: a source of images and the frame made of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
"""RGB, height x width x 3, uint8."""


class CameraError(Exception):
    """No usable camera or image; the message is one line and says what to do."""


@dataclass(frozen=True)
class Frame:
    """One camera image, ready for the encoder.

    `image` is uint8 RGB, size x size x 3, contiguous, and never written again. `captured_ns` is
    the `time.perf_counter_ns` at which the image arrived; `sequence` counts frames from 0.
    """

    image: Image
    captured_ns: int
    sequence: int


class CameraSource(Protocol):
    """A webcam, a video, a folder or a walk over photographs; used from one thread."""

    name: str
    fps: float
    """How often `read` wants to be called, per second."""

    def read(self) -> Image | None:
        """The next image, of any size; None once it has ended. Raises `CameraError`.

        May block for the next image. After an error it may be called again to retry.
        """

    def close(self) -> None:
        """Release the device or file; safe to call twice."""
