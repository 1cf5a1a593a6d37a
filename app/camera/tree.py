"""Image files in a folder and all folders below it, as data sets are laid out."""

from __future__ import annotations

import os
from pathlib import Path

from app.camera.images import SUFFIXES
from app.camera.source import CameraError


def find_images(folder: Path) -> list[Path]:
    """The image files at any depth, by their paths below `folder`; hidden names are left out.

    Links to folders are not followed. Raises `CameraError` if there are none.
    """
    found: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(place, name)
            for name in files
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    if not found:
        raise CameraError(f"no images in '{folder}' or below: put .jpg, .png or .webp files there")
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _refuse(error: OSError) -> None:
    raise CameraError(f"cannot read folder '{error.filename}': {error.strerror}") from error
