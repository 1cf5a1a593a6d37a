"""One run of an encoder's training: encoder files, states to resume from, evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from app.encoder import weights_digest
from app.pixels import psnr_db
from app.pretrain.evidence import MARGIN, Figures, components_sheet, measure, rms
from app.pretrain.learner import Pretrainer, TokenReader, teacher
from app.pretrain.views import inputs
from app.train.loop import Loop, Teller
from app.train.photo_set import PhotoSet
from engine.atomic import write_atomic
from engine.checkpoint import save_checkpoint
from engine.errors import EngineError
from models.dinov3 import centred, lengthened
from models.dinov3_files import load_encoder, save_encoder

Inputs = dict[str, np.ndarray]

TOKEN_RMS = 0.7
"""Of the written encoder's tokens over photographs, whose mean is zero: a random encoder's, which
decoders' learning rates were chosen with. Decoders take tokens as they are."""


@dataclass(frozen=True)
class Files:
    """What a run writes."""

    encoder: Path
    state: Path
    evidence: Path | None
    """Folder."""


@dataclass(frozen=True)
class Kept:
    """An encoder as it was written, with the figures of that moment."""

    step: int
    losses: tuple[float, ...] | None
    """Means over the steps since the encoder before, as "losses" of `pretraining_graph`."""
    figures: Figures
    weights_sha256: str

    @property
    def summary(self) -> str:
        """See Keepsake."""
        f = self.figures
        losses = f"{_losses(self.losses)}, " if self.losses else ""
        return (
            f"step {self.step}: {losses}stable {f.stability:.3f} (random {f.random_pairs:.3f}), "
            f"linear {f.linear_psnr_db:.2f} dB, rank {f.effective_rank:.1f}, "
            f"colour {f.colour_share:.2f}, place {f.place_share:.2f}"
        )


class Evidence:
    """Figures of encoders on held-out images, f32 [size + MARGIN, size + MARGIN, 3] in 0..1."""

    def __init__(
        self, reader: TokenReader, images: Sequence[np.ndarray], others: Sequence[np.ndarray]
    ) -> None:
        self._reader, self._images, self._others = reader, images, others

    def figures(self, encoder: Mapping[str, np.ndarray]) -> Figures:
        """Measure an encoder; waits for the device."""
        self._reader.load(encoder)
        return measure(self._reader, self._images, self._others)

    def token_moments(self, encoder: Mapping[str, np.ndarray]) -> tuple[np.ndarray, float]:
        """Mean of its tokens over photographs learnt from, f64 [384], and the RMS about it."""
        self._reader.load(encoder)
        tokens = np.concatenate([self._reader(image) for image in self._others])
        mean = tokens.mean(axis=0, dtype=np.float64)
        return mean, rms(tokens - mean)

    def sheet(self, encoder: Mapping[str, np.ndarray]) -> bytes:
        """Its principal components on the held-out images, PNG."""
        self._reader.load(encoder)
        size = self._images[0].shape[0] - MARGIN
        squares = [np.ascontiguousarray(image[:size, :size]) for image in self._images]
        return components_sheet(self._reader, squares)


class Pretraining(Loop[Inputs, Kept]):
    """Steps of a student and its teacher on a photo set; what is written is the teacher.

    `baseline` are the figures of an encoder that has learnt nothing, for comparison.
    """

    def __init__(
        self,
        learner: Pretrainer,
        photos: PhotoSet,
        evidence: Evidence,
        baseline: Figures,
        files: Files,
        metadata: Mapping[str, str],
        progress: Teller,
    ) -> None:
        super().__init__(learner, files.state, learner.recipe.rate, progress)
        self.learner, self.photos, self.evidence = learner, photos, evidence
        self.baseline, self.files, self.metadata = baseline, files, metadata
        self._rows: list[np.ndarray] = []

    def batch(self, step: int) -> Inputs:
        """See Loop."""
        recipe = self.learner.recipe
        numbers = range(step * recipe.batch, (step + 1) * recipe.batch)
        samples = [self.photos.draw(recipe.seed, number) for number in numbers]
        return inputs(samples, recipe.size, recipe.masked)

    def advance(self, batch: Inputs) -> list[float]:
        """See Loop."""
        return self._take(self.learner.advance(batch))

    def drain(self) -> list[float]:
        """See Loop."""
        return self._take(self.learner.wait())

    def write(self, tensors: Mapping[str, np.ndarray]) -> Kept:
        """See Loop."""
        step, depth = self.learner.step, self.learner.recipe.depth
        metadata = {**self.metadata, "step": str(step)}
        save_checkpoint(self.files.state, tensors, {**metadata, "model": "pretraining"})
        learnt = teacher(tensors)
        mean, deviation = self.evidence.token_moments(learnt)
        factor = TOKEN_RMS / deviation
        metadata["lengthened"] = repr(factor)
        settled = lengthened(centred(learnt, mean), factor)
        save_encoder(self.files.encoder, settled, depth, metadata)
        # What was written is measured: its weights are rounded to f16.
        encoder = load_encoder(self.files.encoder, depth)
        losses = tuple(map(float, np.mean(self._rows, axis=0))) if self._rows else None
        kept = Kept(step, losses, self.evidence.figures(encoder), weights_digest(encoder))
        self._rows.clear()
        if self.files.evidence is not None:
            self._write_evidence(self.files.evidence, encoder, kept)
        return kept

    def shown(self, loss: float) -> str:
        """See Loop."""
        return _losses(np.mean(self._rows[-50:], axis=0))

    def _take(self, rows: np.ndarray) -> list[float]:
        self._rows += list(rows)
        return [float(loss) for loss in rows[:, 0]]

    def _write_evidence(self, folder: Path, encoder: Mapping[str, np.ndarray], kept: Kept) -> None:
        details = {
            "step": kept.step,
            "encoder": asdict(kept.figures),
            "untrained": asdict(self.baseline),
            "weights_sha256": kept.weights_sha256,
            **self.metadata,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / "evidence.json", json.dumps(details, indent=2) + "\n")
            write_atomic(folder / "components.png", self.evidence.sheet(encoder))
        except OSError as error:
            raise EngineError(f"cannot write to {folder}: {error.strerror or error}") from error


def _losses(values: Sequence[float] | np.ndarray) -> str:
    loss, distillation, reconstruction = values
    return f"loss {loss:.4f} (tokens {distillation:.4f}, pixels {psnr_db(reconstruction):.2f} dB)"
