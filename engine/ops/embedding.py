"""Rows of a table by index, as for token embeddings, and the adjoint: adding rows by index.

An index beyond the table reads zeros, and what is added there is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import embedding as kernels
from engine.kernels.operands import is_wide
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require

CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 1), (1,)),
    ((5, 7), (11,)),
    ((67, 8), (3,)),
    ((3, 2, 5), (2, 13)),
    ((4,), (6,)),
)
"""(table shape, index shape)"""


def _check(op: Op, inputs: Sequence[TensorType]) -> None:
    good = len(inputs) == 2 and [t.dtype for t in inputs] == ["f32", "u32"]
    require(good, op.name, "takes f32 rows and u32 indices", *inputs)
    ranks = all(len(t.shape) >= 1 for t in inputs)
    require(ranks, op.name, "operands must have rank 1 or more", *inputs)


@register
class Gather(Op):
    """y[..., *row] = x[ids[...]] for x [rows, *row] and u32 ids [...]."""

    name = "gather"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        _check(self, inputs)
        x, ids = inputs
        return TensorType((*ids.shape, *x.shape[1:]))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, ids = inputs
        return np.concatenate([x, np.zeros((1, *x.shape[1:]))])[np.minimum(ids, len(x))]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x, ids = node.inputs
        return [node.graph.add("scatter_add", [upstream, ids], rows=x.shape[0]), None]

    def lower(self, node: Node, to: Lowering) -> None:
        x, ids = node.inputs
        kernel = kernels.gather(x.shape[0], prod(x.shape[1:]), ids.type.size, to.stored(x))
        to.dispatch(kernel, node.inputs, node)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        return (0,) if is_wide(prod(inputs[0].shape[1:])) else ()

    def samples(self) -> Iterator[Sample]:
        for table, ids in CASES:
            yield Sample((table, ids), integers={1: table[0] + 1})


@register
class ScatterAdd(Op):
    """y[rows, *row]: zeros, to which every x[k] of x [..., *row] is added at ids[k]."""

    name = "scatter_add"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        _check(self, inputs)
        x, ids = inputs
        lead = len(ids.shape)
        good = x.shape[:lead] == ids.shape and attrs["rows"] >= 1
        require(good, self.name, "rows must begin with the shape of the indices", *inputs)
        return TensorType((attrs["rows"], *x.shape[lead:]))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, ids = inputs
        row = x.shape[ids.ndim :]
        y = np.zeros((attrs["rows"] + 1, *row))
        np.add.at(y, np.minimum(ids, attrs["rows"]).reshape(-1), x.reshape(-1, *row))
        return y[:-1]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [gather(upstream, node.inputs[1]), None]

    def lower(self, node: Node, to: Lowering) -> None:
        x, ids = node.inputs
        rows, count = node.shape[0], ids.type.size
        next_of = to.scratch((rows + count,))
        to.dispatch(kernels.links(rows, count), [ids], next_of)
        kernel = kernels.scatter_add(rows, prod(node.shape[1:]), count)
        to.dispatch(kernel, [x, next_of], node)

    def samples(self) -> Iterator[Sample]:
        for table, ids in CASES:
            shapes = ((*ids, *table[1:]), ids)
            yield Sample(shapes, {"rows": table[0]}, integers={1: table[0] + 1})


def gather(x: Node, ids: Node) -> Node:
    """x[ids] along the first axis, for u32 ids of any shape; zeros beyond the table."""
    return x.graph.add("gather", [x, ids])


def scatter_add(x: Node, ids: Node, rows: int) -> Node:
    """Zeros [rows, *row] with every x[k] added at ids[k]; what lies beyond is dropped."""
    return x.graph.add("scatter_add", [x, ids], rows=rows)


def embedding(ids: Node, table: Node) -> Node:
    """Rows [..., h] of a table [v, h] for u32 ids [...]."""
    require(len(table.shape) == 2, "embedding", "the table must be a matrix", table.type, ids.type)
    return gather(table, ids)
