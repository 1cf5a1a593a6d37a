"""Layer normalisation and softmax over the last axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import reduce as kernels
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.pointwise import mul
from engine.ops.reduce import reduce_sum
from engine.specialize import row_lanes

ROWS = ((1, 1), (1, 5), (3, 64), (7, 67), (2, 3, 130))


def _rows(node: Node, to: Lowering) -> tuple[int, int, int]:
    """(rows, columns, lanes per row) of a row kernel."""
    columns = node.shape[-1]
    return node.type.size // columns, columns, row_lanes(columns, to.facts)


class RowOp(Op):
    """An op on rows: all of its full-size operands have the shape of the result."""

    operands = 1

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
        return [node.graph.add("softmax_grad", [node, upstream])]

    def lower(self, node: Node, to: Lowering) -> None:
        to.dispatch(kernels.softmax(*_rows(node, to)), node.inputs, node)

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
        to.dispatch(kernels.softmax_grad(*_rows(node, to)), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ROWS:
            yield Sample((shape, shape))


def _normalize(x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)


@register
class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) over the last axis, then * w + b when these are given."""

    name = "layer_norm"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) in (1, 3), self.name, "takes x, or x, weight and bias", *inputs)
        floats = all(t.dtype == "f32" for t in inputs) and len(inputs[0].shape) >= 1
        require(floats, self.name, "operands must be f32 of rank 1 or more", *inputs)
        columns = inputs[0].shape[-1:]
        fits = all(t.shape == columns for t in inputs[1:])
        require(fits, self.name, f"weight and bias must be {list(columns)}", *inputs)
        require(attrs["eps"] > 0, self.name, "eps must be positive", *inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y = _normalize(inputs[0], attrs["eps"])
        return y * inputs[1] + inputs[2] if len(inputs) == 3 else y

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x, eps = node.inputs[0], node.attrs["eps"]
        if len(node.inputs) == 1:
            return [node.graph.add("layer_norm_grad", [x, upstream], eps=eps)]
        weight = node.inputs[1]
        rows = range(len(node.shape) - 1)
        normalized = node.graph.add("layer_norm", [x], eps=eps)
        scaled = mul(upstream, weight)
        return [
            node.graph.add("layer_norm_grad", [x, scaled], eps=eps),
            reduce_sum(mul(upstream, normalized), rows),
            reduce_sum(upstream, rows),
        ]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = kernels.layer_norm(*_rows(node, to), node.attrs["eps"], len(node.inputs) == 3)
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ((2, 5), (3, 64), (7, 67), (2, 3, 130)):
            yield Sample((shape,), {"eps": 1e-5})
            yield Sample((shape, shape[-1:], shape[-1:]), {"eps": 1e-5})


@register
class LayerNormGrad(RowOp):
    """Gradient of the normalisation (without affine part) from x and upstream."""

    name = "layer_norm_grad"
    operands = 2

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, g = inputs
        centred = x - x.mean(axis=-1, keepdims=True)
        inv = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + attrs["eps"])
        hat = centred * inv
        return inv * (
            g - g.mean(axis=-1, keepdims=True) - hat * (g * hat).mean(axis=-1, keepdims=True)
        )

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = kernels.layer_norm_grad(*_rows(node, to), node.attrs["eps"])
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ((2, 5), (3, 64), (7, 67)):
            yield Sample((shape, shape), {"eps": 1e-5})


def softmax(x: Node) -> Node:
    """Softmax over the last axis."""
    return x.graph.add("softmax", [x])


def layer_norm(
    x: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float
) -> Node:
    """Layer normalisation over the last axis, with weight and bias [columns] or neither."""
    affine = [weight, bias] if weight is not None and bias is not None else []
    return x.graph.add("layer_norm", [x, *affine], eps=float(eps))
