"""Softmax and its logarithm over the last axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import softmax as kernels
from engine.kernels.operands import in_elements
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.specialize import row_lanes

ROWS = ((1, 1), (1, 5), (3, 64), (7, 67), (2, 3, 130))


def rows_of(node: Node, to: Lowering) -> tuple[int, int, int]:
    """(rows, columns, lanes per row) of a row kernel over a tensor like `node`."""
    columns = node.shape[-1]
    return node.type.size // columns, columns, row_lanes(in_elements(columns), to.facts)


class RowOp(Op):
    """An op on rows: all of its operands have the shape of the result."""

    operands = 1
    log = False

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == self.operands, self.name, f"takes {self.operands} operands", *inputs)
        same = len(set(inputs)) == 1 and inputs[0].dtype == "f32" and len(inputs[0].shape) >= 1
        require(same, self.name, "operands must be f32 of equal shape", *inputs)
        return inputs[0]


@register
class Softmax(RowOp):
    """exp(x - max) / sum over the last axis."""

    name = "softmax"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        e = np.exp(inputs[0] - inputs[0].max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [node.graph.add(f"{self.name}_grad", [node, upstream])]

    def lower(self, node: Node, to: Lowering) -> None:
        to.dispatch(kernels.softmax(*rows_of(node, to), log=self.log), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ROWS:
            yield Sample((shape,), low=-8, high=8)


@register
class SoftmaxGrad(RowOp):
    """Gradient of softmax from its result y and upstream g: y * (g - sum(y * g))."""

    name = "softmax_grad"
    operands = 2

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y, g = inputs
        return y * (g - (y * g).sum(axis=-1, keepdims=True))

    def lower(self, node: Node, to: Lowering) -> None:
        to.dispatch(kernels.softmax_grad(*rows_of(node, to), log=self.log), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ROWS:
            yield Sample((shape, shape))


@register
class LogSoftmax(Softmax):
    """x - max - log(sum(exp(x - max))) over the last axis."""

    name = "log_softmax"
    log = True

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        shifted = inputs[0] - inputs[0].max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@register
class LogSoftmaxGrad(SoftmaxGrad):
    """Gradient of log_softmax from its result y and upstream g: g - exp(y) * sum(g)."""

    name = "log_softmax_grad"
    log = True

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y, g = inputs
        return g - np.exp(y) * g.sum(axis=-1, keepdims=True)


def softmax(x: Node) -> Node:
    """Softmax over the last axis."""
    return x.graph.add("softmax", [x])


def log_softmax(x: Node) -> Node:
    """Logarithm of softmax over the last axis."""
    return x.graph.add("log_softmax", [x])
