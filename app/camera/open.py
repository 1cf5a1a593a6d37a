"""From the text given to `--camera` to an open camera."""

from __future__ import annotations

import os
import re
from pathlib import Path

from app.camera.folder import ImageFolder
from app.camera.images import SUFFIXES, list_images
from app.camera.opencv import VideoFile, Webcam
from app.camera.photo_walk import PhotoWalk
from app.camera.source import CameraError, CameraSource
from assets import photos_dir

CHOICES = "use photos, webcam:N, a video file or a folder of images"


def open_camera(spec: str, size: int = 224, seed: int = 0) -> CameraSource:
    """Open `photos`, `webcam:N`, a video or image file, or a folder of images.

    `size` is the side in pixels of the square that will be shown; `seed` orders the photo walk.
    Raises `CameraError` with one line that says what to do.
    """
    if spec == "photos":
        return PhotoWalk(photos_dir() / "train", size, seed)
    if spec.startswith("webcam"):
        number = re.fullmatch(r"webcam:([0-9]{1,3})", spec)
        if number is None and not os.path.exists(spec):
            raise CameraError(f"unknown webcam '{spec}': use webcam:N, the first is webcam:0")
        if number is not None:
            return Webcam(int(number[1]))
    try:
        return _open_path(spec, size)
    except OSError as error:
        raise CameraError(f"cannot look for '{spec:.60}': {error.strerror}: {CHOICES}") from error


def _open_path(spec: str, size: int) -> CameraSource:
    path = Path(os.path.expanduser(spec))
    if spec and path.is_dir():
        return ImageFolder(spec, list_images(path), size)
    if path.is_file():
        if path.suffix.lower() in SUFFIXES:
            return ImageFolder(spec, [path], size)
        return VideoFile(path)
    if spec and path.exists():
        raise CameraError(f"'{spec}' is neither a file nor a folder: {CHOICES}")
    if path.suffix or len(path.parts) > 1:
        raise CameraError(f"camera path '{spec}' does not exist: {CHOICES}")
    raise CameraError(f"unknown camera '{spec}': {CHOICES}")
