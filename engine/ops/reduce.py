"""Sums and means over any set of axes, as one strided reduction over a middle axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from engine.graph import Node, TensorType
from engine.kernels.reduce import sum_axis, sum_slices
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.pointwise import affine, expand
from engine.ops.shape import permute, reshape


@register
class Sum(Op):
    """y[outer, inner] = scale * sum over the middle axis of x[outer, length, inner]."""

    name = "sum"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 1 and len(inputs[0].shape) == 3 and inputs[0].dtype == "f32"
        require(good, self.name, "takes one f32 tensor of rank 3", *inputs)
        outer, _, inner = inputs[0].shape
        return TensorType((outer, inner))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0].sum(axis=1) * attrs["scale"]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        outer, _, inner = node.inputs[0].shape
        row = affine(reshape(upstream, (outer, 1, inner)), node.attrs["scale"])
        return [expand(row, node.inputs[0].shape)]

    def lower(self, node: Node, to: Lowering) -> None:
        outer, length, inner = node.inputs[0].shape
        kernels = sum_axis(outer, length, inner, node.attrs["scale"])
        if len(kernels) == 1:
            to.dispatch(kernels[0], node.inputs, node)
            return
        parts = to.scratch((outer, sum_slices(length), inner))
        to.dispatch(kernels[0], node.inputs, parts)
        to.dispatch(kernels[1], [parts], node)

    def samples(self) -> Iterator[Sample]:
        for shape in ((1, 1, 1), (3, 7, 5), (1, 613, 3), (2, 300, 1), (5, 1, 4), (1, 9001, 1)):
            yield Sample((shape,), {"scale": 0.5})


def _axes(x: Node, axes: Iterable[int]) -> list[int]:
    """Distinct axes counted from the front, ascending."""
    rank = len(x.shape)
    chosen = set()
    for axis in axes:
        require(-rank <= axis < rank, "sum", f"axis {axis} does not fit", x.type)
        chosen.add(axis % rank)
    return sorted(chosen)


def reduce_sum(x: Node, axes: Iterable[int], *, scale: float = 1.0) -> Node:
    """Sum over `axes` (dropped from the shape), times `scale`; f32.

    Axes that are not neighbours are first moved together.
    """
    chosen = _axes(x, axes)
    kept = [axis for axis in range(len(x.shape)) if axis not in chosen]
    result = tuple(x.shape[axis] for axis in kept)
    if not chosen:
        return affine(x, scale) if scale != 1.0 else x
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        x = permute(x, (*chosen, *kept))
        outer, length, inner = 1, prod(x.shape[: len(chosen)]), prod(result)
    else:
        outer = prod(x.shape[: chosen[0]])
        length = prod(x.shape[chosen[0] : chosen[-1] + 1])
        inner = prod(x.shape[chosen[-1] + 1 :])
    flat = reshape(x, (outer, length, inner))
    return reshape(x.graph.add("sum", [flat], scale=float(scale)), result or (1,))


def reduce_mean(x: Node, axes: Iterable[int]) -> Node:
    """Mean over `axes`, which are dropped from the shape; f32."""
    chosen = _axes(x, axes)
    return reduce_sum(x, chosen, scale=1.0 / prod(x.shape[axis] for axis in chosen))
