"""Random small graphs: the inputs of property tests of rewriting, planning and execution."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Feeds, signed
from hypothesis import strategies as st

from engine import ops
from engine.autodiff import gradients
from engine.graph import Graph, Node

EXTENTS = st.sampled_from((1, 2, 3, 4, 5, 8))
BOUNDED = ("gelu", "tanh", "sigmoid", "silu", "relu", "abs")


class Builder:
    """Appends drawn operations on matrices; every step keeps magnitudes moderate."""

    STEPS = (
        "unary",
        "binary",
        "scaled",
        "product",
        "layer",
        "rows",
        "summed",
        "moved",
        "cut",
        "joined",
    )

    def __init__(self, draw: Any) -> None:
        self.draw, self.graph = draw, Graph()
        self.values = [self.source((draw(EXTENTS), draw(EXTENTS))) for _ in range(2)]

    def source(self, shape: tuple[int, ...]) -> Node:
        return self.graph.input(f"x{len(self.graph.nodes)}", shape)

    def step(self) -> None:
        x = self.draw(st.sampled_from(self.values))
        self.values.append(getattr(self, self.draw(st.sampled_from(self.STEPS)))(x))

    def unary(self, x: Node) -> Node:
        return ops.unary(self.draw(st.sampled_from(BOUNDED)), x)

    def partner(self, x: Node) -> Node:
        """Another value, or a new source, that broadcasts with x to x's shape."""
        alike = [v for v in self.values if v.shape in (x.shape, (1, x.shape[1]))]
        if self.draw(st.booleans()):
            return self.draw(st.sampled_from(alike))
        rows, columns = x.shape
        shapes = [x.shape, (rows, 1), (1, columns), (columns,), (1,)]
        return self.source(self.draw(st.sampled_from(shapes)))

    def binary(self, x: Node) -> Node:
        pair = [x, self.partner(x)]
        if self.draw(st.booleans()):
            pair.reverse()
        return self.graph.add(self.draw(st.sampled_from(("add", "sub"))), pair)

    def scaled(self, x: Node) -> Node:
        return ops.mul(ops.unary("tanh", x), self.partner(x))

    def product(self, x: Node) -> Node:
        ta, tb = self.draw(st.booleans()), self.draw(st.booleans())
        inner, width = x.shape[0] if ta else x.shape[1], self.draw(EXTENTS)
        weight = self.source((width, inner) if tb else (inner, width))
        return ops.matmul(x, weight, transpose_a=ta, transpose_b=tb)

    def layer(self, x: Node) -> Node:
        width = self.draw(EXTENTS)
        y = ops.linear(x, self.source((width, x.shape[1])), self.source((width,)))
        return ops.gelu(y) if self.draw(st.booleans()) else y

    def rows(self, x: Node) -> Node:
        kind = self.draw(st.sampled_from(("softmax", "norm", "affine norm")))
        if kind == "softmax":
            return ops.softmax(x)
        # A large eps keeps rows of equal elements from amplifying rounding.
        if kind == "norm":
            return ops.layer_norm(x, eps=0.1)
        width = x.shape[1:]
        return ops.layer_norm(x, self.source(width), self.source(width), eps=0.1)

    def summed(self, x: Node) -> Node:
        axis = self.draw(st.integers(0, 1))
        mean = ops.reshape(ops.reduce_mean(x, [axis]), (1, -1) if axis == 0 else (-1, 1))
        return ops.expand(mean, x.shape) if self.draw(st.booleans()) else mean

    def moved(self, x: Node) -> Node:
        if self.draw(st.booleans()):
            return ops.permute(x, (1, 0))
        return ops.reshape(x, (x.shape[1], x.shape[0]))

    def cut(self, x: Node) -> Node:
        axis = self.draw(st.integers(0, 1))
        if self.draw(st.booleans()):
            return ops.pad(x, axis, self.draw(st.integers(0, 2)), self.draw(st.integers(0, 2)))
        start = self.draw(st.integers(0, x.shape[axis] - 1))
        return ops.take(x, axis, start, self.draw(st.integers(start + 1, x.shape[axis])))

    def joined(self, x: Node) -> Node:
        axis = self.draw(st.integers(0, 1))
        fitting = [v for v in self.values if v.shape[1 - axis] == x.shape[1 - axis]]
        return ops.concat(x, self.draw(st.sampled_from(fitting)), axis)


@st.composite
def programs(draw: Any, steps: int = 10) -> tuple[Graph, Feeds]:
    """A graph with outputs (in half of the cases gradients among them) and its feeds."""
    builder = Builder(draw)
    for _ in range(draw(st.integers(1, steps))):
        builder.step()
    graph, values = builder.graph, builder.values
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graph.output("last", values[-1])
    graph.output("other", draw(st.sampled_from(values)))
    sources = [node for node in graph.nodes if node.op == "input"]
    if draw(st.booleans()):
        coefficient = graph.constant("coefficient", signed(rng, values[-1].shape))
        loss = ops.reduce_sum(ops.mul(values[-1], coefficient), range(2))
        for source, grad in zip(sources, gradients(loss, sources), strict=True):
            graph.output(f"gradient of {source.name}", grad)
    feeds = {node.name: rng.uniform(-1, 1, node.shape).astype(np.float32) for node in sources}
    return graph, feeds
