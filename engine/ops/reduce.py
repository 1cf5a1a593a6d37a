"""Sums, means, variances and extremes over any set of axes, as one strided reduction over a middle
axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.reduce import arg_axis, put_at, reduce_axis, sum_slices
from engine.lower import Lowering, Operand
from engine.op import Array, Attrs, Op, Sample, add_definition, register, require
from engine.ops.pointwise import affine, expand, square, sub
from engine.ops.shape import permute, reshape

SHAPES = ((1, 1, 1), (3, 7, 5), (1, 613, 3), (2, 300, 1), (5, 1, 4), (1, 9001, 1))


class Reduction(Op):
    """A result [outer, inner] from the middle axis of x[outer, length, inner]."""

    dtype = "f32"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 1 and len(inputs[0].shape) == 3 and inputs[0].dtype == "f32"
        require(good, self.name, "takes one f32 tensor of rank 3", *inputs)
        outer, _, inner = inputs[0].shape
        return TensorType((outer, inner), self.dtype)

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,))


@register
class Sum(Reduction):
    """y[outer, inner] = scale * sum over the middle axis of x[outer, length, inner]."""

    name = "sum"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0].sum(axis=1) * attrs["scale"]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        outer, _, inner = node.inputs[0].shape
        row = affine(reshape(upstream, (outer, 1, inner)), node.attrs["scale"])
        return [expand(row, node.inputs[0].shape)]

    def lower(self, node: Node, to: Lowering) -> None:
        shape = _rank3(node.inputs[0])
        lower_sum(to, node.inputs[0], shape, node, scale=node.attrs["scale"])

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,), {"scale": 0.5})


def _rank3(x: Node) -> tuple[int, int, int]:
    outer, length, inner = x.shape
    return outer, length, inner


def lower_sum(
    to: Lowering,
    source: Operand,
    shape: tuple[int, int, int],
    result: Operand,
    *,
    scale: float = 1.0,
    kind: str = "sum",
) -> None:
    """Append the one or two launches that reduce `source` [outer, length, inner]."""
    outer, length, inner = shape
    trees = not to.facts.is_cpu
    kernels = reduce_axis(kind, outer, length, inner, scale, trees=trees)
    if len(kernels) == 1:
        to.dispatch(kernels[0], [source], result)
        return
    parts = to.scratch((outer, sum_slices(length, trees=trees), inner))
    to.dispatch(kernels[0], [source], parts)
    to.dispatch(kernels[1], [parts], result)


class Extreme(Reduction):
    """The maximum or minimum over the middle axis; among equals the first has the gradient."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0].max(axis=1) if self.name == "max" else inputs[0].min(axis=1)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x = node.inputs[0]
        where = x.graph.add(f"arg{self.name}", [x])
        return [x.graph.add("extreme_grad", [where, upstream], length=x.shape[1])]

    def lower(self, node: Node, to: Lowering) -> None:
        lower_sum(to, node.inputs[0], _rank3(node.inputs[0]), node, kind=self.name)


class ArgExtreme(Reduction):
    """Index of the first maximum or minimum on the middle axis, u32; no gradient passes."""

    dtype = "u32"

    def __init__(self, kind: str) -> None:
        self.kind, self.name = kind, f"arg{kind}"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        find = np.argmax if self.kind == "max" else np.argmin
        return find(inputs[0], axis=1).astype(np.uint32)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [None]

    def lower(self, node: Node, to: Lowering) -> None:
        outer, length, inner = _rank3(node.inputs[0])
        kernels = arg_axis(self.kind, outer, length, inner)
        if len(kernels) == 1:
            to.dispatch(kernels[0], node.inputs, node)
            return
        candidates = to.scratch((outer, sum_slices(length), inner))
        to.dispatch(kernels[0], node.inputs, candidates)
        to.dispatch(kernels[1], [*node.inputs, candidates], node)


@register
class ExtremeGrad(Op):
    """y[outer, length, inner]: upstream [outer, inner] at the given indices, zero elsewhere."""

    name = "extreme_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 2 and [t.dtype for t in inputs] == ["u32", "f32"]
        require(good, self.name, "takes u32 indices and f32 upstream", *inputs)
        same = inputs[0].shape == inputs[1].shape and len(inputs[0].shape) == 2
        require(same, self.name, "operands must be matrices of equal shape", *inputs)
        outer, inner = inputs[0].shape
        return TensorType((outer, attrs["length"], inner))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        where, upstream = inputs
        index = np.arange(attrs["length"]).reshape(1, -1, 1)
        return np.where(index == where[:, None], upstream[:, None], 0.0)

    def lower(self, node: Node, to: Lowering) -> None:
        to.dispatch(put_at(*_rank3(node)), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for outer, length, inner in ((1, 1, 1), (3, 7, 5), (2, 11, 4)):
            shape = (outer, inner)
            yield Sample((shape, shape), {"length": length}, integers={0: length})


for _kind in ("max", "min"):
    add_definition(Extreme(_kind))
    add_definition(ArgExtreme(_kind))


def _axes(x: Node, axes: Iterable[int]) -> list[int]:
    """Distinct axes counted from the front, ascending."""
    rank = len(x.shape)
    chosen = set()
    for axis in axes:
        require(-rank <= axis < rank, "sum", f"axis {axis} does not fit", x.type)
        chosen.add(axis % rank)
    return sorted(chosen)


def _reduce(x: Node, axes: Iterable[int], op: str, **attrs: float) -> Node:
    """Apply a reduction to `axes`; those that are not neighbours are first moved together."""
    chosen = _axes(x, axes)
    kept = [axis for axis in range(len(x.shape)) if axis not in chosen]
    result = tuple(x.shape[axis] for axis in kept)
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        x = permute(x, (*chosen, *kept))
        outer, length, inner = 1, prod(x.shape[: len(chosen)]), prod(result)
    else:
        outer = prod(x.shape[: chosen[0]])
        length = prod(x.shape[chosen[0] : chosen[-1] + 1])
        inner = prod(x.shape[chosen[-1] + 1 :])
    flat = reshape(x, (outer, length, inner))
    return reshape(x.graph.add(op, [flat], **attrs), result or (1,))


def reduce_sum(x: Node, axes: Iterable[int], *, scale: float = 1.0) -> Node:
    """Sum over `axes` (dropped from the shape), times `scale`; f32."""
    chosen = _axes(x, axes)
    if not chosen:
        return affine(x, scale) if scale != 1.0 else x
    return _reduce(x, chosen, "sum", scale=float(scale))


def reduce_mean(x: Node, axes: Iterable[int]) -> Node:
    """Mean over `axes`, which are dropped from the shape; f32."""
    chosen = _axes(x, axes)
    return reduce_sum(x, chosen, scale=1.0 / prod(x.shape[axis] for axis in chosen))


def reduce_variance(x: Node, axes: Iterable[int]) -> Node:
    """Mean squared difference from the mean over `axes`, which are dropped from the shape; f32."""
    chosen = _axes(x, axes)
    kept = tuple(1 if axis in chosen else extent for axis, extent in enumerate(x.shape))
    return reduce_mean(square(sub(x, reshape(reduce_mean(x, chosen), kept))), chosen)


def reduce_max(x: Node, axes: Iterable[int]) -> Node:
    """Maximum over `axes` (dropped from the shape); the first of equals has the gradient."""
    chosen = _axes(x, axes)
    return _reduce(x, chosen, "max") if chosen else x


def reduce_min(x: Node, axes: Iterable[int]) -> Node:
    """Minimum over `axes` (dropped from the shape); the first of equals has the gradient."""
    chosen = _axes(x, axes)
    return _reduce(x, chosen, "min") if chosen else x


def argmax(x: Node, axis: int) -> Node:
    """Index of the first maximum along `axis` (dropped from the shape); u32, no gradient."""
    return _reduce(x, [axis], "argmax")


def argmin(x: Node, axis: int) -> Node:
    """Index of the first minimum along `axis` (dropped from the shape); u32, no gradient."""
    return _reduce(x, [axis], "argmin")
