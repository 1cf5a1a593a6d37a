"""Optimisers: a graph rewrite that appends the update, and the host side that feeds it.

The update runs on the device inside the training plan; the host only writes four scalars
before each run (learning rate, bias corrections and marks, computed in float64).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from engine.autodiff import gradients
from engine.errors import GraphError
from engine.graph import EXTRA, Graph, Node, consumers, reachable
from engine.kernels.update import FIRST, LAST
from engine.lower import storage_root
from engine.ops.shape import copy
from engine.ops.update import blocks
from engine.rewrite import rewrite_forward
from engine.schedules import Constant, Schedule

HYPER = "optim.hyper"


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """An update rule and what all rules share. Raises GraphError for impossible values."""

    schedule: Schedule = field(default_factory=Constant)
    """Factor of the learning rate by update number, from 1."""
    multipliers: Mapping[str, float] = field(default_factory=dict)
    """Factors of the learning rate (and of decoupled decay) by name prefix, ending at a dot or at
    the name's end; the longest that matches counts, 1 if none does."""
    clip_norm: float | None = None
    """Gradients are scaled down so that their norm over all parameters is at most this."""
    accumulate: int = 1
    """Runs whose gradients are averaged for one update; the last of them updates."""

    moments: ClassVar[tuple[str, ...]]
    """Prefixes of the state tensors that the rule keeps per parameter."""
    update: ClassVar[str]
    """The op that applies the rule."""

    def __post_init__(self) -> None:
        _require(self.accumulate >= 1, "accumulate", "at least 1", self.accumulate)
        clip = self.clip_norm
        _require(clip is None or 0 < clip < math.inf, "clip_norm", "above 0", clip)
        for prefix, factor in self.multipliers.items():
            _require(0 <= factor < math.inf, f"multiplier '{prefix}'", "at least 0", factor)

    @property
    @abstractmethod
    def constants(self) -> dict[str, Any]:
        """Attributes of the update op."""

    @abstractmethod
    def scalars(self, update: int) -> Sequence[float]:
        """The first three scalars for update number `update`."""

    def hyper(self, run: int) -> np.ndarray:
        """f32 [4] fed to `optim.hyper` before run number `run` of the plan (the first is 1)."""
        marks = 0
        if self.accumulate > 1:
            marks += FIRST * ((run - 1) % self.accumulate == 0)
            marks += LAST * (run % self.accumulate == 0)
        return np.array([*self.scalars(self.updates(run - 1) + 1), marks], np.float32)

    def updates(self, runs: int) -> int:
        """Updates that so many runs have made."""
        return runs // self.accumulate

    def multiplier(self, name: str) -> float:
        """Factor of the learning rate of a parameter."""
        matching = [prefix for prefix in self.multipliers if _matches(prefix, name)]
        return self.multipliers[max(matching, key=len)] if matching else 1.0

    def attach(self, graph: Graph, parameters: list[Node], grads: list[Node]) -> None:
        """Append the update of `parameters` to the graph's effects."""
        attrs = {
            "clip": float(self.clip_norm or 0.0),
            "accumulate": self.accumulate,
            "multiplied": bool(self.multipliers),
            **self.constants,
        }
        inputs = [graph.input(HYPER, (4,))]
        if self.multipliers:
            inputs.append(graph.constant("optim.multipliers", self._table(parameters)))
        kept = (*self.moments, "gradient_sum") if self.accumulate > 1 else self.moments
        state = [graph.state(f"{kind}.{p.name}", p.shape) for kind in kept for p in parameters]
        inputs += [*parameters, *grads, *state]
        graph.effects.append(graph.add(self.update, inputs, **attrs))

    def _table(self, parameters: list[Node]) -> np.ndarray:
        for prefix in self.multipliers:
            if not any(_matches(prefix, p.name) for p in parameters):
                raise GraphError(f"the multiplier '{prefix}' matches no trainable parameter")
        counts = [blocks([p.type]) for p in parameters]
        return np.repeat([self.multiplier(p.name) for p in parameters], counts)


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum, plain or Nesterov's."""

    rate: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False

    moments: ClassVar[tuple[str, ...]] = ("sgd_m",)
    update: ClassVar[str] = "sgd_update"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 <= self.rate < math.inf, "rate", "at least 0", self.rate)
        _require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1", self.momentum)
        good = self.momentum > 0 or not self.nesterov
        _require(good, "momentum", "above 0 for Nesterov's rule", self.momentum)

    @property
    def constants(self) -> dict[str, Any]:
        """See Optimizer."""
        return {"momentum": self.momentum, "nesterov": self.nesterov}

    def scalars(self, update: int) -> Sequence[float]:
        """See Optimizer."""
        return (self.rate * self.schedule(update), 0.0, 0.0)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction. `weight_decay` is classic L2 regularisation: it is added to the
    gradient and so goes through the moments. For decoupled decay take AdamW.
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    moments: ClassVar[tuple[str, ...]] = ("adam_m", "adam_v")
    update: ClassVar[str] = "adam_update"
    decoupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 <= self.rate < math.inf, "rate", "at least 0", self.rate)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            _require(0 <= beta < 1, name, "at least 0 and below 1", beta)
        _require(0 < self.eps < math.inf, "eps", "above 0", self.eps)
        _require(0 <= self.weight_decay < math.inf, "weight_decay", "at least 0", self.weight_decay)

    @property
    def constants(self) -> dict[str, Any]:
        """See Optimizer."""
        l2 = 0.0 if self.decoupled else self.weight_decay
        return {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps, "l2": l2}

    def scalars(self, update: int) -> Sequence[float]:
        """See Optimizer."""
        rate = self.rate * self.schedule(update)
        first = rate / (1 - self.beta1**update)
        second = 1 / math.sqrt(1 - self.beta2**update)
        return (first, second, rate * self.weight_decay if self.decoupled else 0.0)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): w -= rate * weight_decay * w
    beside the adaptive step, untouched by the moments.
    """

    weight_decay: float = 0.01

    decoupled: ClassVar[bool] = True


def keep_gradients(loss: Node) -> list[Node]:
    """Compute the gradient of every trainable parameter and keep it for the host, by name."""
    parameters = loss.graph.parameters(trainable=True)
    grads = _own_storage(gradients(rewrite_forward(loss), parameters))
    loss.graph.gradients.update((p.name, g) for p, g in zip(parameters, grads, strict=True))
    return grads


def minimize(loss: Node, optimizer: Optimizer) -> None:
    """Turn the graph of `loss` into a training graph for all of its trainable parameters.

    Several losses are minimised together by minimising their weighted sum. With
    `optimizer.accumulate` the gradients kept for the host are those of the single run.
    """
    grads = keep_gradients(loss)
    optimizer.attach(loss.graph, loss.graph.parameters(trainable=True), grads)


def _own_storage(grads: list[Node]) -> list[Node]:
    """Copy gradients that another node reads, or that share storage: packs need their own."""
    # A further result of the same launch reads nothing.
    users = consumers(node for node in reachable(grads) if node.op != EXTRA)
    roots = Counter(storage_root(grad) for grad in grads)
    result = []
    for grad in grads:
        root = storage_root(grad)
        chain = grad
        private = roots[root] == 1 and bool(root.inputs) and not users.get(grad)
        while chain is not root:
            chain = chain.inputs[0]
            private = private and len(users[chain]) == 1
        result.append(grad if private else copy(grad))
    return result


def _matches(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _require(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise GraphError(f"optimiser: {name} must be {rule}, not {value}")
