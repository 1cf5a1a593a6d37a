"""Optimisers: a graph rewrite that appends the update, and the host side that feeds it.

The update runs on the device inside the training plan; the host only writes four scalars
before each step (learning rate and bias corrections, computed in float64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.autodiff import gradients
from engine.graph import Graph, Node, consumers, reachable
from engine.lower import storage_root
from engine.ops.shape import copy

HYPER = "optim.hyper"


class Optimizer(Protocol):
    """An update rule."""

    @property
    def moments(self) -> tuple[str, ...]:
        """Prefixes of the state tensors that the rule keeps per parameter."""

    def attach(self, graph: Graph, parameters: list[Node], grads: list[Node]) -> None:
        """Append the update of `parameters` to the graph's effects."""

    def hyper(self, step: int) -> np.ndarray:
        """f32 [4] fed to `optim.hyper` before step number `step` (the first is 1)."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum."""

    rate: float = 0.1
    momentum: float = 0.0
    moments: tuple[str, ...] = ("sgd_m",)

    def attach(self, graph: Graph, parameters: list[Node], grads: list[Node]) -> None:
        """See Optimizer."""
        _attach(graph, "sgd_update", parameters, grads, self.moments, momentum=self.momentum)

    def hyper(self, step: int) -> np.ndarray:
        """See Optimizer."""
        return np.array([self.rate, 0, 0, 0], np.float32)


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction, decoupled weight decay and a linear warm-up in steps."""

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup: int = 0
    moments: tuple[str, ...] = ("adam_m", "adam_v")

    def attach(self, graph: Graph, parameters: list[Node], grads: list[Node]) -> None:
        """See Optimizer."""
        attrs = {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps}
        _attach(graph, "adam_update", parameters, grads, self.moments, **attrs)

    def hyper(self, step: int) -> np.ndarray:
        """See Optimizer."""
        rate = self.rate * min(1.0, step / self.warmup) if self.warmup else self.rate
        first = rate / (1 - self.beta1**step)
        second = 1 / np.sqrt(1 - self.beta2**step)
        return np.array([first, second, rate * self.weight_decay, 0], np.float32)


def minimize(loss: Node, optimizer: Optimizer) -> None:
    """Turn the graph of `loss` into a training graph for all of its trainable parameters."""
    graph = loss.graph
    parameters = graph.parameters(trainable=True)
    grads = _own_storage(gradients(loss, parameters))
    for parameter, grad in zip(parameters, grads, strict=True):
        graph.gradients[parameter.name] = grad
    optimizer.attach(graph, parameters, grads)


def _own_storage(grads: list[Node]) -> list[Node]:
    """Copy gradients that another node reads, or that share storage: packs need their own."""
    users = consumers(reachable(grads))
    seen: set[Node] = set()
    result = []
    for grad in grads:
        root = storage_root(grad)
        chain = grad
        private = root not in seen and bool(root.inputs) and not users[grad]
        while chain is not root:
            chain = chain.inputs[0]
            private = private and len(users[chain]) == 1
        result.append(grad if private else copy(grad))
        seen.add(root)
    return result


def _attach(
    graph: Graph,
    rule: str,
    parameters: list[Node],
    grads: list[Node],
    moments: tuple[str, ...],
    **attrs: float,
) -> None:
    hyper = graph.input(HYPER, (4,))
    state = [graph.state(f"{m}.{p.name}", p.shape) for m in moments for p in parameters]
    graph.effects.append(graph.add(rule, [hyper, *parameters, *grads, *state], **attrs))
