"""How close a painted image is to the original: PSNR, SSIM and MAE.

SSIM is that of Wang et al. 2004 as scikit-image computes it: a Gaussian window of sigma 1.5 (11 x
11 pixels), population covariance, data range 1, per colour channel and then averaged.
scikit-image's own default, a flat 7 x 7 window, gives other figures. The published artifact does
not say which window its SSIM of 0.6406 is for; this is the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from skimage.metrics import structural_similarity

from app.pixels import psnr_db


@dataclass(frozen=True)
class Quality:
    """Of one image; errors are in units of the full range, 0..1."""

    mse: float
    mae: float
    ssim: float

    @property
    def psnr_db(self) -> float:
        """Peak signal-to-noise ratio, dB; infinite for identical images."""
        return psnr_db(self.mse)


def measure(painted: np.ndarray, original: np.ndarray) -> Quality:
    """Compare two images f32 [h, w, 3] in 0..1, of at least 11 x 11 pixels."""
    error = painted.astype(np.float64) - original
    similarity = structural_similarity(
        original,
        painted,
        data_range=1.0,
        channel_axis=-1,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    return Quality(
        float(np.mean(error**2)), float(np.mean(np.abs(error))), float(np.mean(similarity))
    )


def summarize(qualities: Sequence[Quality]) -> dict[str, int | float | None]:
    """The figures of many images: the global PSNR is that of all pixels together.

    An infinite PSNR is None: JSON has no infinity.
    """
    return {
        "images": len(qualities),
        "psnr_global_db": _rounded(psnr_db(float(np.mean([q.mse for q in qualities])))),
        "psnr_median_db": _rounded(float(np.median([q.psnr_db for q in qualities]))),
        "ssim_median": _rounded(float(np.median([q.ssim for q in qualities]))),
        "mae_median": _rounded(float(np.median([q.mae for q in qualities]))),
    }


def _rounded(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None
