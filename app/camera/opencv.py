"""Webcams and video files through OpenCV."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import cv2

from app.camera.images import bgr_to_rgb
from app.camera.source import CameraError, Image

FALLBACK_FPS = 30.0
MAX_FPS = 240.0

# FFmpeg's own lines on stderr: read once, when the process first opens or writes a video.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")


class Capture(Protocol):
    """The part of `cv2.VideoCapture` that is used."""

    def isOpened(self) -> bool:  # noqa: N802, D102
        ...

    def read(self) -> tuple[bool, cv2.typing.MatLike]:  # noqa: D102
        ...

    def get(self, propId: int) -> float:  # noqa: D102
        ...

    def set(self, propId: int, value: float) -> bool:  # noqa: D102
        ...

    def release(self) -> None:  # noqa: D102
        ...


OpenCapture = Callable[[int | str], Capture]


def open_capture(target: int | str) -> Capture:
    """Open a device number or a file, without OpenCV's own lines on stderr."""
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2.VideoCapture(target)


class Webcam:
    """A `CameraSource` on device `index`; one that dies is reopened by the next `read`.

    Raises `CameraError` if it does not open.
    """

    # Reading blocks until the device delivers. Asking more often than any webcam does keeps old
    # images from queueing in the driver.
    fps = MAX_FPS

    def __init__(self, index: int, open_: OpenCapture = open_capture) -> None:
        self.name = f"webcam:{index}"
        self._index = index
        self._open = open_
        self._capture: Capture | None = self._connect()

    def read(self) -> Image:
        """Wait for the next image. Raises `CameraError` while the webcam gives none."""
        if self._capture is None:
            self._capture = self._connect()
        ok, image = self._capture.read()
        if not ok:
            self.close()
            raise CameraError(f"{self.name} stopped giving images: check its cable; retrying")
        return bgr_to_rgb(image)

    def close(self) -> None:
        """Release the device; safe to call twice."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def _connect(self) -> Capture:
        capture = self._open(self._index)
        if not capture.isOpened():
            capture.release()
            raise CameraError(
                f"{self.name} does not open: connect it, close programs that use it, "
                "or try another number or --camera photos"
            )
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        return capture


class VideoFile:
    """A `CameraSource` that plays a video at its own frame rate, over and over.

    Raises `CameraError` if the file is no video that OpenCV can decode.
    """

    def __init__(self, path: Path, open_: OpenCapture = open_capture) -> None:
        self.name = str(path)
        self._open = open_
        self._capture, first = self._start()
        self._first: Image | None = first
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self.fps = fps if 0 < fps <= MAX_FPS else FALLBACK_FPS

    def read(self) -> Image:
        """The next image; after the last comes the first."""
        if self._first is not None:
            image, self._first = self._first, None
            return image
        ok, decoded = self._capture.read()
        if ok:
            return bgr_to_rgb(decoded)
        # Reopened, not rewound: seeking is inexact in some containers.
        self._capture.release()
        self._capture, image = self._start()
        return image

    def close(self) -> None:
        """Release the file; safe to call twice."""
        self._capture.release()

    def _start(self) -> tuple[Capture, Image]:
        capture = self._open(self.name)
        ok, image = capture.read() if capture.isOpened() else (False, None)
        if not ok or image is None:
            capture.release()
            raise CameraError(f"cannot play '{self.name}': convert it to an H.264 .mp4 and retry")
        return capture, bgr_to_rgb(image)
