"""One run of training: steps, losses watched, checkpoints kept, held-out figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from app.encoder import weights_digest
from app.network import psnr_db
from app.prefetch import Prefetch
from app.train.errors import TrainError
from app.train.learner import Learner
from app.train.photo_set import PhotoSet
from app.train.recipe import Recipe
from engine.checkpoint import save_checkpoint


class Teller(Protocol):
    """Where progress goes: `app.progress.Progress`, or nowhere in tests."""

    def say(self, text: str) -> None:
        """Print a line."""

    def update(self, line: Callable[[], str]) -> None:
        """Show the running state when it is time to."""


@dataclass(frozen=True)
class Kept:
    """A checkpoint as it was written, with the figures of that moment."""

    step: int
    loss: float | None
    """Mean over the steps since the checkpoint before; None if there were none."""
    held_out_db: float
    held_out_median_db: float
    weights_sha256: str


class Training:
    """Steps of a learner on a photo set; `file` always holds the newest finite checkpoint.

    `held_out` gives the global and the median PSNR (dB) of a decoder; `metadata` goes into every
    checkpoint.
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
    ) -> None:
        self.learner, self.recipe, self.photos = learner, recipe, photos
        self.held_out, self.file, self.progress = held_out, file, progress
        self.metadata = metadata
        self.kept: Kept | None = None
        self._known = learner.step
        self._losses: list[float] = []

    def run(self, steps: int, every: int, stop: Callable[[], bool]) -> Kept:
        """Learn until step `steps`, or until `stop()`; a checkpoint every `every` steps and last.

        Raises TrainError when the loss or a weight is not finite; the checkpoint before stays.
        """
        recipe, first = self.recipe, self.learner.step

        def batch(step: int) -> np.ndarray:
            return self.photos.batch(recipe.seed, step * recipe.batch, recipe.batch)

        self._began_s, self._began_step, self._steps = time.monotonic(), first, steps
        with Prefetch(batch, range(first, steps)) as batches:
            for images in batches:
                self._note(self.learner.advance(images))
                self.progress.update(self._line)
                if stop():
                    break
                if self.learner.step % every == 0 and self.learner.step < steps:
                    self._keep()
        return self._keep()

    def _note(self, losses: list[float]) -> None:
        for loss in losses:
            self._known += 1
            if not math.isfinite(loss):
                raise self._diverged(f"the loss of step {self._known}")
            self._losses.append(loss)

    def _keep(self) -> Kept:
        """Measure the decoder, and write a checkpoint."""
        self._note(self.learner.drain())
        tensors = self.learner.tensors()
        for name, value in tensors.items():
            if not np.isfinite(value).all():
                raise self._diverged(f"'{name}' at step {self.learner.step}")
        step = self.learner.step
        decoder = {name: tensors[name] for name in self.learner.shapes("parameter")}
        held_out = self.held_out(decoder)
        if math.isnan(held_out[0]):
            raise self._diverged(f"what step {step} paints")
        save_checkpoint(self.file, tensors, {**self.metadata, "step": str(step)})
        loss = float(np.mean(self._losses)) if self._losses else None
        self.kept = Kept(step, loss, *held_out, weights_digest(decoder))
        self._losses.clear()
        self.progress.say(_summary(self.kept))
        return self.kept

    def _diverged(self, what: str) -> TrainError:
        if self.kept is not None:
            state = f"{self.file} holds step {self.kept.step}"
        else:
            state = f"{self.file} is as it was" if self.file.exists() else "nothing was saved"
        rate = self.recipe.rate
        return TrainError(f"{what} is not finite; {state}: take a --rate below {rate:g}")

    def _line(self) -> str:
        done, left = self.learner.step - self._began_step, self._steps - self.learner.step
        rate = done / max(1e-9, time.monotonic() - self._began_s)
        text = f"step {self.learner.step} of {self._steps}, {rate:.1f} steps/s"
        if self._losses:
            recent = float(np.mean(self._losses[-50:]))
            text += f", loss {recent:.5f} ({psnr_db(recent):.2f} dB)"
        minutes, seconds = divmod(round(left / rate), 60)
        return f"{text}, {minutes}:{seconds:02} left"


def _summary(kept: Kept) -> str:
    text = f"step {kept.step}: "
    if kept.loss is not None:
        text += f"loss {kept.loss:.5f} ({psnr_db(kept.loss):.2f} dB), "
    return f"{text}held out {kept.held_out_db:.2f} dB (median {kept.held_out_median_db:.2f})"
