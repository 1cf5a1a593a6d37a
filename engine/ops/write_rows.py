"""Rows written into a larger tensor at a position known at run time, as into a cache of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from engine.graph import Node, TensorType
from engine.kernels.operands import element, in_elements
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require


def _kernel(lead: int, capacity: int, rows: int, width: int) -> Kernel:
    """One invocation per element of x; what lies beyond the capacity is dropped."""
    kind, n = element(width), in_elements(width)
    count = lead * rows * n
    body = f"""
    let row = position[0] + (i / {n}u) % {rows}u;
    if (row < {capacity}u) {{
        y[(i / {rows * n}u * {capacity}u + row) * {n}u + i % {n}u] = x[i];
    }}"""
    source = bindings([("x", kind), ("position", "u32")], [("y", kind)])
    return Kernel("write_rows", source + linear_main(count, 64, body), linear_grid(count, 64))


@register
class WriteRows(Op):
    """y [..., capacity, width] with y[..., position + i, :] = x[..., i, :], in its own storage.

    Operands: y, x [..., rows, width] and a u32 position [1]. Rows beyond the capacity are dropped.
    """

    name = "write_rows"
    in_place = True

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 3, self.name, "takes y, x and a position", *inputs)
        y, x, position = inputs
        require(y.dtype == x.dtype == "f32", self.name, "y and x must be f32", y, x)
        good = len(y.shape) == len(x.shape) >= 2 and y.shape[-1] == x.shape[-1]
        good = good and y.shape[:-2] == x.shape[:-2] and y.shape[-2] >= x.shape[-2]
        require(good, self.name, "x must be y with fewer rows", y, x)
        scalar = position == TensorType((1,), "u32")
        require(scalar, self.name, "the position must be u32 [1]", position)
        return y

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y, x, position = inputs
        first = int(position[0])
        kept = max(0, min(x.shape[-2], y.shape[-2] - first))
        result = y.copy()
        result[..., first : first + kept, :] = x[..., :kept, :]
        return result

    def lower(self, node: Node, to: Lowering) -> None:
        *lead, capacity, width = node.shape
        _, x, position = node.inputs
        to.dispatch(_kernel(prod(lead), capacity, x.shape[-2], width), [x, position], node)

    def samples(self) -> Iterator[Sample]:
        for y, x in (
            ((1, 1), (1, 1)),
            ((7, 3), (2, 3)),
            ((2, 3, 9, 8), (2, 3, 1, 8)),
            ((3, 5, 4), (3, 5, 4)),
        ):
            yield Sample((y, x, (1,)), integers={2: y[-2]})


def write_rows(y: Node, x: Node, position: Node) -> Node:
    """A state or input y [..., capacity, width] after x [..., rows, width] was written into it.

    The first row goes to `position`, u32 [1], what lies beyond the capacity nowhere. The result
    is y's own storage: nothing else may read y.
    """
    return y.graph.add("write_rows", [y, x, position])
