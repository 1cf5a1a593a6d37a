"""What pointwise ops share: broadcasting, and the two ops that their gradients are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from engine.errors import GraphError
from engine.graph import Node, TensorType
from engine.kernels.pointwise import element_of, pointwise
from engine.kernels.wgsl import Step, f32
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require

SHAPES = ((1,), (7,), (3, 5), (2, 3, 8), (67, 4))


class Pointwise(Op):
    """An op whose result element depends only on the operands' (broadcast) elements."""

    arity: int

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        """Expression over `args`, each of WGSL type `kind`."""
        raise NotImplementedError

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == self.arity, self.name, f"takes {self.arity} operands", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        try:
            return TensorType(np.broadcast_shapes(*(t.shape for t in inputs)))
        except ValueError:
            shapes = " and ".join(map(str, inputs))
            raise GraphError(f"{self.name}: shapes do not broadcast, got {shapes}") from None

    def lower(self, node: Node, to: Lowering) -> None:
        step = Step(
            lambda kind, *args: self.wgsl(node.attrs, kind, *args), tuple(range(len(node.inputs)))
        )
        emit_pointwise(to, self.name, [step], node)


def emit_pointwise(to: Lowering, label: str, steps: Sequence[Step], node: Node) -> None:
    """Append the launch of a pointwise program, which also finishes a product that it reads."""
    shapes = [value.shape for value in node.inputs]
    kind = element_of(node.shape, shapes)
    for k, value in enumerate(node.inputs):
        whole = value.shape == node.shape and node.inputs.count(value) == 1
        rest = to.take_unfinished(value, kind, len(node.inputs) + 1) if whole else None
        if rest:
            kernel = pointwise(label, steps, node.shape, shapes, (k, rest.splits))
            reads = [*node.inputs[:k], *rest.reads, *node.inputs[k + 1 :]]
            to.dispatch(kernel, reads, value, node)
            return
    to.dispatch(pointwise(label, steps, node.shape, shapes), node.inputs, node)


def unbroadcast(gradient: Node, like: Node) -> Node:
    """Sum `gradient` over the axes along which `like` was broadcast."""
    if gradient.shape == like.shape:
        return gradient
    from engine.ops.reduce import reduce_sum
    from engine.ops.shape import reshape

    lead = len(gradient.shape) - len(like.shape)
    axes = [
        axis
        for axis, extent in enumerate(gradient.shape)
        if axis < lead or (like.shape[axis - lead] == 1 and extent != 1)
    ]
    return reshape(reduce_sum(gradient, axes), like.shape)


@register
class Affine(Pointwise):
    """y = scale * x + shift, with float attributes."""

    name = "affine"
    arity = 1

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        finite = all(math.isfinite(attrs.get(key, math.nan)) for key in ("scale", "shift"))
        require(finite, self.name, "needs finite scale and shift", *inputs)
        return super().infer(inputs, attrs)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return attrs["scale"] * inputs[0] + attrs["shift"]

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return f"({kind}({f32(attrs['scale'])}) * {args[0]} + {kind}({f32(attrs['shift'])}))"

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [affine(upstream, node.attrs["scale"])]

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,), {"scale": -1.5, "shift": 0.25})


@register
class Expand(Pointwise):
    """Repeat along axes of extent 1 until the shape is `shape`."""

    name = "expand"
    arity = 1

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        own, shape = inputs[0].shape, tuple(attrs["shape"])
        good = len(own) == len(shape)
        good = good and all(n >= 1 and m in (1, n) for m, n in zip(own, shape, strict=True))
        require(good, self.name, f"cannot give {TensorType(shape)}", *inputs)
        return TensorType(shape)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return np.broadcast_to(inputs[0], attrs["shape"])

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return args[0]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [unbroadcast(upstream, node.inputs[0])]

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1,),), {"shape": (5,)})
        yield Sample(((3, 1, 4),), {"shape": (3, 7, 4)})
        yield Sample(((1, 5, 1),), {"shape": (2, 5, 3)})


def affine(x: Node, scale: float, shift: float = 0.0) -> Node:
    """Scale * x + shift for constants known when the graph is built."""
    return x.graph.add("affine", [x], scale=float(scale), shift=float(shift))


def neg(x: Node) -> Node:
    """-x."""
    return affine(x, -1.0)


def expand(x: Node, shape: Sequence[int]) -> Node:
    """Repeat x along its axes of extent 1."""
    return x.graph.add("expand", [x], shape=tuple(shape))
