"""Building blocks shared by the models: parameter scopes, initialisers, layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt

import numpy as np

from engine import ops
from engine.graph import Graph, Initializer, Node
from models import layouts
from models.layouts import Layout


def constant(value: float) -> Initializer:
    """Every element is `value`."""
    return lambda rng, shape: np.full(shape, value, np.float32)


def normal(std: float) -> Initializer:
    """Gaussian with mean 0, cut at two standard deviations."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.clip(rng.standard_normal(shape), -2, 2).astype(np.float32) * np.float32(std)

    return draw


@dataclass(frozen=True)
class Scope:
    """Where parameters are declared: a graph, a name prefix and whether they are trained.

    All sub-scopes note the layout of what they declare in the same `layouts`, by full name.
    """

    graph: Graph
    prefix: str = ""
    trainable: bool = True
    layouts: dict[str, Layout] = field(default_factory=dict)

    def __truediv__(self, name: str) -> Scope:
        """A sub-scope: names below it are "prefix.name.*"."""
        return replace(self, prefix=self._join(name))

    def parameter(
        self, name: str, shape: Sequence[int], init: Initializer, layout: Layout | None = None
    ) -> Node:
        """Declare a parameter of this scope; `layout`: how it is published, if not as stored."""
        full = self._join(name)
        self.layouts[full] = layout or layouts.unchanged(*shape)
        return self.graph.parameter(full, shape, init, trainable=self.trainable)

    def constant(self, name: str, value: np.ndarray) -> Node:
        """Embed a constant of this scope."""
        return self.graph.constant(self._join(name), value)

    def _join(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name


def linear(s: Scope, x: Node, width: int, *, bias: bool = True, std: float | None = None) -> Node:
    """X [..., in] -> [..., width]; weight [width, in] as PyTorch stores it."""
    fan_in = x.shape[-1]
    init = normal(std or sqrt(1.0 / fan_in))
    weight = s.parameter("weight", (width, fan_in), init, layouts.dense(fan_in, width))
    return ops.linear(x, weight, s.parameter("bias", (width,), constant(0.0)) if bias else None)


def layer_norm(s: Scope, x: Node, eps: float = 1e-5) -> Node:
    """Layer normalisation over the last axis with learned weight and bias."""
    columns = x.shape[-1:]
    weight = s.parameter("weight", columns, constant(1.0))
    return ops.layer_norm(x, weight, s.parameter("bias", columns, constant(0.0)), eps=eps)


def conv3x3(s: Scope, x: Node, width: int, *, gain: float = 1.0) -> Node:
    """3x3 convolution of x [n, h, w, c] with zero padding; weight [width, 9 * c]."""
    layout = layouts.conv(width, x.shape[-1], 3, 3)
    fan_in = layout.engine[1]
    weight = s.parameter("weight", layout.engine, normal(gain * sqrt(1.0 / fan_in)), layout)
    bias = s.parameter("bias", (width,), constant(0.0))
    return ops.conv2d(x, weight, bias, 3, padding=1)


def pixel_shuffle(x: Node, factor: int) -> Node:
    """[n, h, w, factor^2 * c] -> [n, factor * h, factor * w, c]; channels are (dy, dx, c)."""
    n, h, w, channels = x.shape
    c = channels // factor**2
    tiles = ops.reshape(x, (n, h, w, factor, factor, c))
    return ops.reshape(ops.permute(tiles, (0, 1, 3, 2, 4, 5)), (n, h * factor, w * factor, c))


def initial_parameters(
    graph: Graph, seed: int, *, trainable: bool | None = None
) -> dict[str, np.ndarray]:
    """Draw a graph's parameters (all, or only trainable or frozen ones) from their initialisers.

    The same seed gives the same values. Each parameter has a generator of its own, so adding one
    does not change the others.
    """
    values = {}
    for node in graph.parameters(trainable=trainable):
        rng = np.random.default_rng([seed, *node.name.encode()])
        values[node.name] = graph.initializers[node.name](rng, node.shape)
    return values


def count(parameters: Mapping[str, np.ndarray]) -> int:
    """Total number of elements."""
    return sum(prod(value.shape) for value in parameters.values())
