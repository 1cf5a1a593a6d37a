"""One run of a decoder's training: held-out figures, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.encoder import weights_digest
from app.pixels import psnr_db
from app.train.learner import Learner
from app.train.loop import Loop, Teller
from app.train.photo_set import PhotoSet
from app.train.recipe import Recipe
from engine.checkpoint import save_checkpoint


@dataclass(frozen=True)
class Kept:
    """A checkpoint as it was written, with the figures of that moment."""

    step: int
    loss: float | None
    """Mean over the steps since the checkpoint before; None if there were none."""
    held_out_db: float
    held_out_median_db: float
    weights_sha256: str

    @property
    def summary(self) -> str:
        """See Keepsake."""
        loss = "" if self.loss is None else f"{_loss(self.loss)}, "
        held_out = f"{self.held_out_db:.2f} dB (median {self.held_out_median_db:.2f})"
        return f"step {self.step}: {loss}held out {held_out}"


class Training(Loop[np.ndarray, Kept]):
    """Steps of a learner on a photo set; `file` always holds the newest finite checkpoint.

    `held_out` gives the global and the median PSNR (dB) of a decoder; `metadata` goes into every
    checkpoint. The decoder alone is written to `weights` too.
    """

    def __init__(
        self,
        learner: Learner,
        recipe: Recipe,
        photos: PhotoSet,
        held_out: Callable[[Mapping[str, np.ndarray]], tuple[float, float]],
        file: Path,
        metadata: Mapping[str, str],
        progress: Teller,
        weights: Path | None = None,
    ) -> None:
        super().__init__(learner, file, recipe.rate, progress)
        self.learner, self.recipe, self.photos = learner, recipe, photos
        self.held_out, self.metadata, self.weights = held_out, metadata, weights

    def batch(self, step: int) -> np.ndarray:
        """See Loop."""
        return self.photos.batch(self.recipe.seed, step * self.recipe.batch, self.recipe.batch)

    def advance(self, batch: np.ndarray) -> list[float]:
        """See Loop."""
        return self.learner.advance(batch)

    def drain(self) -> list[float]:
        """See Loop."""
        return self.learner.drain()

    def write(self, tensors: Mapping[str, np.ndarray]) -> Kept:
        """See Loop."""
        step = self.learner.step
        decoder = {name: tensors[name] for name in self.learner.shapes("parameter")}
        held_out = self.held_out(decoder)
        if math.isnan(held_out[0]):
            raise self.diverged(f"what step {step} paints")
        metadata = {**self.metadata, "step": str(step)}
        save_checkpoint(self.file, tensors, metadata)
        if self.weights is not None:
            save_checkpoint(self.weights, decoder, metadata)
        return Kept(step, self.mean_loss(), *held_out, weights_digest(decoder))

    def shown(self, loss: float) -> str:
        """See Loop."""
        return _loss(loss)


def _loss(loss: float) -> str:
    return f"loss {loss:.5f} ({psnr_db(loss):.2f} dB)"
