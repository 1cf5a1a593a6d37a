"""What the benchmark needs of a network: one definition for inference and training, the values of
its inputs, and its parameters in their published ("native") layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from engine.graph import Graph, Node
from engine.optim import keep_gradients
from models.hashing import hash_uniform
from models.layouts import Layout
from models.nn import Scope

OUTPUT = "output"
LOSS = "loss"

C = TypeVar("C")
"""The dataclass of a network's sizes."""


def norms(name: str) -> float | None:
    """Norms start as the identity, everything else is hashed."""
    if "norm" not in name:
        return None
    return 1.0 if name.endswith(".weight") else 0.0


@dataclass(frozen=True)
class Network:
    """A graph and the layouts of its parameters by name."""

    graph: Graph
    layouts: Mapping[str, Layout]


@dataclass(frozen=True, kw_only=True)
class Workload(Generic[C]):
    """One network of the benchmark."""

    name: str
    full: C
    """The shape of inference and training."""
    latency: C
    """The smallest shape that is timed, forward only."""
    reduced: C
    """The same structure at a size that a float64 interpreter computes within seconds."""
    sized: Callable[[int], C]
    """The full network on so many tokens, actions, images, frames or pixels a side."""
    forward: Callable[[Scope, C], Node]
    """Declares inputs and parameters and gives the output in its published shape."""
    loss: Callable[[Node, C], Node]
    """The scalar [1] of an output that training minimises; may declare inputs."""
    inputs: Callable[[C], dict[str, np.ndarray]]
    """Values of all inputs by name, those of the loss included."""
    has_golden: bool = True
    """Whether there are reference files of it."""
    fixed: Callable[[str], float | None] = norms
    """The value at which a parameter starts; None: it is hashed."""

    def inference(self, config: C) -> Network:
        """A graph whose output is "output"."""
        scope = Scope(Graph())
        scope.graph.output(OUTPUT, self.forward(scope, config))
        return Network(scope.graph, scope.layouts)

    def training(self, config: C) -> Network:
        """A graph whose output is "loss" and that keeps all gradients; it updates nothing."""
        scope = Scope(Graph())
        loss = self.loss(self.forward(scope, config), config)
        scope.graph.output(LOSS, loss)
        keep_gradients(loss)
        return Network(scope.graph, scope.layouts)

    def parameter(self, name: str, layout: Layout) -> np.ndarray:
        """The initial value of a parameter, f32 as the engine stores it."""
        value = self.fixed(name)
        if value is not None:
            return np.full(layout.engine, value, np.float32)
        return layout.to_engine(hash_uniform(name, layout.native))

    def parameters(self, network: Network) -> dict[str, np.ndarray]:
        """The initial values of all parameters of one of this workload's networks."""
        return {name: self.parameter(name, layout) for name, layout in network.layouts.items()}
