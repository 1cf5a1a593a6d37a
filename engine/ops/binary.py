"""Functions of two operands with NumPy broadcasting: one table row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from engine.graph import Node
from engine.op import Array, Attrs, Sample, add_definition
from engine.ops.elementwise import SHAPES, Pointwise, affine, unbroadcast


@dataclass(frozen=True)
class BinaryRow:
    """One binary function; `gradient(a, b, y, upstream)` builds both (unreduced) gradients."""

    name: str
    wgsl: str
    numpy: Callable[[Array, Array], Array]
    gradient: Callable[[Node, Node, Node, Node], tuple[Node | None, Node | None]]


BINARY = (
    BinaryRow("add", "({a} + {b})", np.add, lambda a, b, y, g: (g, g)),
    BinaryRow("sub", "({a} - {b})", np.subtract, lambda a, b, y, g: (g, affine(g, -1.0))),
    BinaryRow("mul", "({a} * {b})", np.multiply, lambda a, b, y, g: (mul(g, b), mul(g, a))),
    BinaryRow(
        "div",
        "({a} / {b})",
        np.divide,
        lambda a, b, y, g: (div(g, b), affine(div(mul(g, y), b), -1.0)),
    ),
    BinaryRow("maximum", "max({a}, {b})", np.maximum, lambda a, b, y, g: _share(g, greater(b, a))),
    BinaryRow("minimum", "min({a}, {b})", np.minimum, lambda a, b, y, g: _share(g, greater(a, b))),
    BinaryRow(
        "greater",
        "select({T}(0.0), {T}(1.0), {a} > {b})",
        lambda a, b: (a > b) * 1.0,
        lambda a, b, y, g: (None, None),
    ),
)


def _share(upstream: Node, second: Node) -> tuple[Node, Node]:
    """Upstream for the second operand where the mask is 1, else for the first."""
    taken = mul(upstream, second)
    return sub(upstream, taken), taken


class Binary(Pointwise):
    """y = f(a, b) with broadcasting."""

    arity = 2

    def __init__(self, row: BinaryRow) -> None:
        self.name, self.row = row.name, row

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.row.numpy(inputs[0], inputs[1])

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return self.row.wgsl.format(T=kind, a=args[0], b=args[1])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        pair = self.row.gradient(a, b, node, upstream)
        return [
            unbroadcast(grad, operand) if grad is not None else None
            for grad, operand in zip(pair, (a, b), strict=True)
        ]

    def samples(self) -> Iterator[Sample]:
        pairs = [(s, s) for s in SHAPES]
        pairs += [((5, 7), (7,)), ((5, 8), (8,)), ((3, 4, 5), (3, 1, 5)), ((6, 4), (1,))]
        pairs += [((2, 3, 8), (3, 1)), ((1, 4), (5, 4)), ((5, 1), (1, 3))]
        # Of few numbers the extremes may lead the gradient to one operand only.
        few = 4 if self.name in ("maximum", "minimum") else 0
        for pair in (p for p in pairs if prod(p[1]) > few):
            yield Sample(pair, low=0.5, high=2.0)


for _row in BINARY:
    add_definition(Binary(_row))


def add(a: Node, b: Node) -> Node:
    """a + b, broadcasting."""
    return a.graph.add("add", [a, b])


def sub(a: Node, b: Node) -> Node:
    """a - b, broadcasting."""
    return a.graph.add("sub", [a, b])


def mul(a: Node, b: Node) -> Node:
    """a * b, broadcasting."""
    return a.graph.add("mul", [a, b])


def div(a: Node, b: Node) -> Node:
    """a / b, broadcasting."""
    return a.graph.add("div", [a, b])


def maximum(a: Node, b: Node) -> Node:
    """The larger of a and b, broadcasting; where they are equal, a has the gradient."""
    return a.graph.add("maximum", [a, b])


def minimum(a: Node, b: Node) -> Node:
    """The smaller of a and b, broadcasting; where they are equal, a has the gradient."""
    return a.graph.add("minimum", [a, b])


def greater(a: Node, b: Node) -> Node:
    """1 where a > b, else 0, broadcasting; no gradient passes."""
    return a.graph.add("greater", [a, b])
