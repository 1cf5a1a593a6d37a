"""What an encoder's tokens are worth, measured without labels; any encoder can be measured.

Tokens are centred by their mean over all images before angles and variances are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from app.components import principal_projection
from app.pixels import psnr_db
from models.dinov3 import PATCH

Encode = Callable[[np.ndarray], np.ndarray]
"""An image f32 [size, size, 3] in 0..1 -> tokens [(size/16)^2, width]."""

SHIFTS = (1, 2, 4, 8)
"""Pixels, along both axes. Up to half a patch, the nearest token is that of the same number."""
MARGIN = max(SHIFTS)
"""Pixels by which images must be larger than what is encoded."""
RIDGE = 1e-6
"""Of the largest variance: keeps the linear fit defined where tokens have none."""
GAP = 4
CELL = 192
"""Of the sheet, pixels."""


@dataclass(frozen=True)
class Figures:
    """What is measured of one encoder."""

    stability: float
    """Mean cosine of a token with that of the same place after a shift by 1 to 8 pixels."""
    stability_by_shift: dict[int, float]
    random_pairs: float
    """Mean cosine of tokens drawn at random: what `stability` would be of unrelated tokens."""
    linear_psnr_db: float
    """Of held-out patches painted by an affine map from tokens, fitted to other photographs."""
    effective_rank: float
    """Exponential of the entropy of the variances along principal components (Roy 2007)."""
    colour_share: float
    """Share of the variance that the patches' mean colours explain linearly."""
    place_share: float
    """Share of the variance that the place in the image explains."""
    token_rms: float
    """Root mean square of the elements of tokens, not centred."""


def measure(encode: Encode, images: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Figures:
    """Figures of an encoder on held-out images f32 [size + MARGIN, size + MARGIN, 3] in 0..1.

    `others` are images f32 [size, size, 3] that the linear map to pixels is fitted to.
    """
    size = images[0].shape[0] - MARGIN
    squares = [image[:size, :size] for image in images]
    tokens = np.stack([encode(np.ascontiguousarray(square)) for square in squares])
    by_shift = {shift: _stability(encode, images, tokens, shift) for shift in SHIFTS}
    colours = np.stack([patches(square).reshape(-1, PATCH**2, 3).mean(1) for square in squares])
    return Figures(
        stability=float(np.mean(list(by_shift.values()))),
        stability_by_shift=by_shift,
        random_pairs=random_pairs(tokens),
        linear_psnr_db=linear_psnr_db(encode, others, squares, tokens),
        effective_rank=effective_rank(tokens),
        colour_share=explained(tokens, colours),
        place_share=explained_by_place(tokens),
        token_rms=rms(tokens),
    )


def rms(values: np.ndarray) -> float:
    """Root mean square of the elements."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def centred(tokens: np.ndarray) -> np.ndarray:
    """Tokens [images, n, width] without their mean: f64 [images * n, width]."""
    flat = tokens.reshape(-1, tokens.shape[-1]).astype(np.float64)
    return flat - flat.mean(axis=0)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of each row of a with the same row of b; 0 where one is zero."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def random_pairs(tokens: np.ndarray) -> float:
    """Mean cosine of centred tokens [images, n, width] in random pairs."""
    flat = centred(tokens)
    first, second = np.random.default_rng(0).integers(len(flat), size=(2, 8192))
    return float(cosines(flat[first], flat[second]).mean())


def effective_rank(tokens: np.ndarray) -> float:
    """Dimensions that tokens [images, n, width] fill: exp of the entropy of their variances."""
    flat = centred(tokens)
    variances = np.maximum(np.linalg.eigvalsh(flat.T @ flat), 0)
    shares = variances[variances > 0] / max(variances.sum(), np.finfo(float).tiny)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def explained(tokens: np.ndarray, causes: np.ndarray) -> float:
    """Share of the variance of tokens [images, n, width] linear in causes [images, n, k]."""
    flat, given = centred(tokens), centred(causes)
    weights, *_ = np.linalg.lstsq(given, flat, rcond=None)
    return 1 - float(np.square(flat - given @ weights).sum() / max(np.square(flat).sum(), 1e-30))


def explained_by_place(tokens: np.ndarray) -> float:
    """Share of the variance of tokens [images, n, width] between places; by chance 1/images."""
    flat = centred(tokens).reshape(tokens.shape)
    means = flat.mean(axis=0)
    return float(len(tokens) * np.square(means).sum() / max(np.square(flat).sum(), 1e-30))


def patches(image: np.ndarray) -> np.ndarray:
    """An image [size, size, 3] as rows of pixels, [(size/16)^2, 768]."""
    across = image.shape[0] // PATCH
    tiles = image.reshape(across, PATCH, across, PATCH, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(across**2, -1)


def linear_psnr_db(
    encode: Encode, others: Sequence[np.ndarray], squares: Sequence[np.ndarray], tokens: np.ndarray
) -> float:
    """PSNR, dB, of held-out squares [size, size, 3] painted from their `tokens` [images, n, width]
    by the affine map that fits tokens to pixels best on others.
    """
    fitted = np.concatenate([encode(image) for image in others]).astype(np.float64)
    pixels = np.concatenate([patches(image) for image in others]).astype(np.float64)
    mean, grey = fitted.mean(axis=0), pixels.mean(axis=0)
    x = fitted - mean
    covariance = x.T @ x
    ridge = RIDGE * np.linalg.norm(covariance, 2) * np.eye(len(covariance))
    weights = np.linalg.solve(covariance + ridge, x.T @ (pixels - grey))
    painted = (tokens.reshape(-1, tokens.shape[-1]) - mean) @ weights + grey
    wanted = np.concatenate([patches(square) for square in squares])
    return psnr_db(float(np.mean((painted.clip(0, 1) - wanted) ** 2)))


def components_sheet(encode: Encode, images: Sequence[np.ndarray], across: int = 3) -> bytes:
    """A PNG: each image f32 [size, size, 3], its tokens' first three principal components as RGB,
    and the first three over all images.
    """
    tokens = [encode(image) for image in images]
    whole = principal_projection(np.concatenate(tokens))
    rows = []
    for image, own in zip(images, tokens, strict=True):
        projections = (principal_projection(own), whole)
        coloured = [_picture(own @ p.basis.T + p.offset) for p in projections]
        rows.append(np.concatenate([_cell(each) for each in (image, *coloured)], axis=1))
    rows += [np.full_like(rows[0], 255)] * (-len(rows) % across)
    lines = [np.concatenate(rows[k : k + across], axis=1) for k in range(0, len(rows), across)]
    _, data = cv2.imencode(".png", np.concatenate(lines)[..., ::-1])
    return data.tobytes()


def _stability(
    encode: Encode, images: Sequence[np.ndarray], tokens: np.ndarray, shift: int
) -> float:
    size = images[0].shape[0] - MARGIN
    windows = [image[shift : shift + size, shift : shift + size] for image in images]
    moved = np.stack([encode(np.ascontiguousarray(window)) for window in windows])
    return float(cosines(centred(tokens), centred(moved)).mean())


def _picture(values: np.ndarray) -> np.ndarray:
    across = round(len(values) ** 0.5)
    return values.reshape(across, across, 3).clip(0, 1)


def _cell(picture: np.ndarray) -> np.ndarray:
    """A picture f32 [n, n, 3] in 0..1 as uint8 with a margin."""
    shrinks = picture.shape[0] > CELL
    how = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
    scaled = cv2.resize(picture.astype(np.float32), (CELL, CELL), interpolation=how)
    cell = np.full((CELL + GAP, CELL + GAP, 3), 255, np.uint8)
    cell[:CELL, :CELL] = np.round(255 * scaled)
    return cell
