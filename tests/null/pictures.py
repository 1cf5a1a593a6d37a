"""Small images for the camera tests."""

from pathlib import Path

import cv2
import numpy as np

RED, GREEN, BLUE = (250, 10, 10), (10, 250, 10), (10, 10, 250)


def solid(colour: tuple[int, int, int], height: int = 20, width: int = 30) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def write(path: Path, image: np.ndarray) -> Path:
    """Write RGB, RGBA or grey, through memory as OpenCV's writer fails on odd names."""
    order = {4: cv2.COLOR_RGBA2BGRA, 3: cv2.COLOR_RGB2BGR}
    image = cv2.cvtColor(image, order[image.shape[2]]) if image.ndim == 3 else image
    path.write_bytes(cv2.imencode(path.suffix, image)[1].tobytes())
    return path


def close_to(image: np.ndarray, colour: tuple[int, int, int], tolerance: float = 12) -> bool:
    return bool(np.abs(image.astype(float) - colour).max() <= tolerance)
