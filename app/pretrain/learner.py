"""The encoder in training on a device of its own, and any encoder at work there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.pretrain.recipe import PretrainRecipe
from app.pretrain.views import VIEWS
from app.train.stepper import Pace, Stepper
from engine.averaging import RATE
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph
from engine.optim import HYPER
from engine.session import Session
from models.dinov3 import encode, patch_tokens
from models.nn import initial_parameters
from models.pretraining import TEACHER, pretraining_graph


class Pretrainer(Stepper):
    """Steps of a student and its teacher, which start alike.

    Raises TrainError if the batch is too large for the device.
    """

    def __init__(self, gpu: Gpu, recipe: PretrainRecipe, pace: Pace | None = None) -> None:
        self.recipe, self.optimizer = recipe, recipe.optimizer
        graph = pretraining_graph(
            self.optimizer,
            recipe.objective,
            views=VIEWS * recipe.batch,
            depth=recipe.depth,
            size=recipe.size,
        )
        what = f"two views of {recipe.size} x {recipe.size} pixels of {recipe.batch} photographs"
        super().__init__(gpu, graph, "losses", what, pace)
        student = initial_parameters(graph, recipe.seed)
        self.session.load(student)
        self.session.load({f"{TEACHER}.{name}": value for name, value in student.items()})

    def advance(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Submit one step on `app.pretrain.views.inputs`, as `Stepper.submit`."""
        run = self.step + 1
        hyper, rate = self.optimizer.hyper(run), self.recipe.average_rate(run)
        return self.submit({**batch, HYPER: hyper, RATE: rate})


def teacher(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The teacher's parameters among the tensors of a step, by their own names."""
    prefix = f"{TEACHER}."
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


class TokenReader:
    """Patch tokens of single images by an encoder. Waits for the device."""

    def __init__(self, gpu: Gpu, depth: int, size: int) -> None:
        graph = Graph()
        tokens = patch_tokens(encode(graph.input("image", (size, size, 3)), depth))
        graph.output("tokens", tokens)
        self._session = Session(gpu, compile_graph(graph, gpu.facts))
        self._names = [node.name for node in graph.parameters()]

    def load(self, encoder: Mapping[str, np.ndarray]) -> None:
        """Take the encoder's parameters from now on; other tensors are left alone."""
        self._session.load({name: encoder[name] for name in self._names})

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Tokens f32 [(size/16)^2, 384] of an image f32 [size, size, 3] in 0..1."""
        self._session.write("image", image)
        self._session.run()
        return self._session.read("tokens")
