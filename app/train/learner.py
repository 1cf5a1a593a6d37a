"""The decoder in training on a device of one's own."""

from __future__ import annotations

import numpy as np

from app.encoder import Encoder
from app.train.recipe import Recipe
from app.train.stepper import Pace, Stepper
from engine.gpu import Gpu
from engine.optim import HYPER
from models.nn import initial_parameters
from models.vision import training_graph

__all__ = ["Learner", "Pace"]


class Learner(Stepper):
    """Training steps of a decoder. Raises TrainError if the batch is too large for the device."""

    def __init__(
        self, gpu: Gpu, recipe: Recipe, encoder: Encoder, pace: Pace | None = None
    ) -> None:
        self.optimizer = recipe.optimizer
        graph = training_graph(
            self.optimizer, depth=recipe.depth, size=recipe.size, batch=recipe.batch
        )
        what = f"{recipe.batch} samples of {recipe.size} x {recipe.size} pixels"
        super().__init__(gpu, graph, "loss", what, pace)
        self.session.load(encoder.tensors)
        self.session.load(initial_parameters(graph, recipe.seed, trainable=True))

    def advance(self, images: np.ndarray) -> list[float]:
        """Submit one step on images f32 [batch, size, size, 3] in 0..1, as `Stepper.submit`.

        Returns the losses that have arrived.
        """
        shaped = images.reshape(self.session.type("image").shape)
        return _floats(self.submit({"image": shaped, HYPER: self.optimizer.hyper(self.step + 1)}))

    def drain(self) -> list[float]:
        """Wait for all steps; the losses that are left."""
        return _floats(self.wait())


def _floats(rows: np.ndarray) -> list[float]:
    return [float(value) for value in rows[:, 0]]
