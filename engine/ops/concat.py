"""Concatenation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.layout import concat as concat_kernel
from engine.kernels.layout import joined_element
from engine.lower import Lowering
from engine.op import Array, Attrs, Sample, register, require
from engine.ops.shape import Move, split

JOINED = 7
"""Operands of one concat, so that with its result it binds at most 8 buffers."""


@register
class Concat(Move):
    """[a, b, ...] along one axis: 2 to 7 operands."""

    name = "concat"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(2 <= len(inputs) <= JOINED, self.name, f"takes 2 to {JOINED} operands", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        axis = attrs["axis"]
        good = all(0 <= axis < len(t.shape) for t in inputs)
        rests = {(*t.shape[:axis], 0, *t.shape[axis + 1 :]) for t in inputs}
        good = good and len(rests) == 1
        require(good, self.name, f"shapes must agree outside axis {axis}", *inputs)
        shape = list(inputs[0].shape)
        shape[axis] = sum(t.shape[axis] for t in inputs)
        return TensorType(tuple(shape))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return np.concatenate(inputs, axis=attrs["axis"])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        axis = node.attrs["axis"]
        return split(upstream, axis, [value.shape[axis] for value in node.inputs])

    def lower(self, node: Node, to: Lowering) -> None:
        axis = node.attrs["axis"]
        lengths = [prod(value.shape[axis:]) for value in node.inputs]
        outer, kind = prod(node.shape[:axis]), joined_element(lengths)
        for k, value in enumerate(node.inputs):
            once = node.inputs.count(value) == 1
            rest = to.take_unfinished(value, kind, len(node.inputs) + 1) if once else None
            if rest:
                kernel = concat_kernel(outer, lengths, finished=(k, rest.splits))
                reads = [*node.inputs[:k], *rest.reads, *node.inputs[k + 1 :]]
                to.dispatch(kernel, reads, value, node)
                return
        to.dispatch(concat_kernel(outer, lengths), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1,), (3,)), {"axis": 0})
        yield Sample(((5, 8), (2, 8)), {"axis": 0})
        yield Sample(((3, 2, 5), (3, 4, 5)), {"axis": 1})
        yield Sample(((3, 4), (3, 8), (3, 4)), {"axis": 1})
        yield Sample(((2, 1), (3, 1), (1, 1), (4, 1), (1, 1), (2, 1), (5, 1)), {"axis": 0})


def concat(a: Node, b: Node, axis: int) -> Node:
    """[a, b] along `axis`."""
    return concatenate([a, b], axis)


def concatenate(values: Sequence[Node], axis: int) -> Node:
    """All values, at least one, joined along `axis`."""
    if len(values) == 1:
        return values[0]
    if len(values) > JOINED:
        joined = concatenate(values[:JOINED], axis)
        return concatenate([joined, *values[JOINED:]], axis)
    return values[0].graph.add("concat", list(values), axis=axis)
