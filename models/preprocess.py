"""From an image of any size to the encoder's input, by the published recipe of DINOv3.

x / 255, then bilinear resizing with antialiasing, aspect ratio not kept; the third step, the
normalisation, is the first of `models.dinov3.encode`. Source: DINOv3ViTImageProcessor of
transformers 5, which resizes as torch.nn.functional.interpolate(antialias=True) does.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from models.vision import IMAGE


def preprocess(image: np.ndarray, size: int = IMAGE) -> np.ndarray:
    """RGB uint8 [h, w, 3] -> f32 [size, size, 3] in 0..1.

    Raises ValueError for other types and shapes and for an image without pixels.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(
            f"the image must be RGB uint8 [height, width, 3], got {image.dtype} {list(image.shape)}"
        )
    height, width, channels = image.shape
    unit = image.astype(np.float32) * np.float32(1 / 255)
    rows = _resampling(height, size) @ unit.reshape(height, -1)
    columns = rows.reshape(size, width, channels).transpose(1, 0, 2).reshape(width, -1)
    resized = (_resampling(width, size) @ columns).reshape(size, size, channels)
    return np.ascontiguousarray(resized.transpose(1, 0, 2))


def _resampling(before: int, after: int) -> sparse.csr_array:
    """Weights f32 [after, before]: a triangle around each new pixel's centre.

    It reaches one old pixel to either side when enlarging, one new pixel when shrinking.
    """
    # In f32 like PyTorch: weights computed in f64 would change pixels by up to 1e-5.
    scale, half = np.float32(before / after), np.float32(0.5)
    reach = np.maximum(scale, np.float32(1))
    centres = scale * (np.arange(after, dtype=np.float32)[:, None] + half)
    count = int(np.ceil(2 * reach)) + 1
    taps = np.floor(centres - reach + half) + np.arange(count, dtype=np.float32)
    weights = np.maximum(0, 1 - np.abs(taps - centres + half) / reach)
    weights *= (taps >= 0) & (taps < before)
    weights /= weights.sum(axis=1, keepdims=True)
    pixels = np.clip(taps, 0, before - 1).astype(np.int64)
    new = np.broadcast_to(np.arange(after)[:, None], pixels.shape)
    entries = (weights.ravel(), (new.ravel(), pixels.ravel()))
    return sparse.csr_array(entries, shape=(after, before), dtype=np.float32)
