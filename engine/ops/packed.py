"""Products with several weights that lie next to each other in memory, as one; made by rewriting.

The weights keep their names and owners: the kernel binds the run of buffers that the memory planner
lays out one after another anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.layout import concat as concat_kernel
from engine.kernels.matmul import MatmulShape
from engine.kernels.matmul import matmul as matmul_kernels
from engine.lower import Lowering, Operand
from engine.memory import ALIGNMENT, pack_runs
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.specialize import choose_matmul


@register
class PackedMatmul(Op):
    """y[m, sum n] = x[m, k] [w0; w1; ...]^T for weights [n, k]."""

    name = "packed_matmul"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) >= 3 and all(len(t.shape) == 2 and t.dtype == "f32" for t in inputs)
        require(good, self.name, "takes f32 matrices x and at least two weights", *inputs)
        x, *weights = (t.shape for t in inputs)
        same = all(weight[1] == x[1] for weight in weights)
        require(same, self.name, f"weights must be [n, {x[1]}]", *inputs)
        return TensorType((x[0], sum(weight[0] for weight in weights)))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0] @ np.concatenate(inputs[1:]).T

    def lower(self, node: Node, to: Lowering) -> None:
        x, *weights = node.inputs
        (m, k), n = x.shape, node.shape[1]
        joined = _run(weights, to) or _joined(weights, to)
        choice = choose_matmul(1, m, n, k, to.facts, "nt")
        kernels = matmul_kernels(MatmulShape(1, m, n, k, transpose_b=True), choice)
        if len(kernels) == 1:
            to.dispatch(kernels[0], [x, joined], node)
            return
        parts = to.scratch((choice.split_k, m, n))
        to.dispatch(kernels[0], [x, joined], parts)
        to.dispatch(kernels[1], [parts], node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1, 1), (1, 1), (1, 1)))
        yield Sample(((5, 64), (3, 64), (7, 64), (2, 64)))
        yield Sample(((7, 16), (8, 16), (4, 16)))
        yield Sample(((9, 640), (11, 640), (5, 640)))


def _run(weights: Sequence[Node], to: Lowering) -> Operand | None:
    """The weights' buffers if nothing lies between them."""
    ids = tuple(to.buffer(weight) for weight in weights)
    pack = to.buffers[ids[0]].pack
    members = [b for b in to.buffers if b.pack and b.pack == pack]
    places = {b.id: place for place, b in enumerate(members)}
    first = places.get(ids[0], -1)
    neighbours = all(places.get(b) == first + k for k, b in enumerate(ids))
    if first < 0 or not neighbours or any(w.type.nbytes % ALIGNMENT for w in weights):
        return None
    limit = min(to.facts.max_binding_bytes, to.facts.max_buffer_bytes)
    runs = pack_runs([b.type.nbytes for b in members], limit)
    together = any(a <= first and first + len(ids) <= b for a, b in runs)
    return ids if together else None


def _joined(weights: Sequence[Node], to: Lowering) -> Operand:
    """A copy in which the weights follow each other; eight bindings bound how many at a time."""
    operands: list[Operand] = [to.buffer(weight) for weight in weights]
    sizes = [weight.type.size for weight in weights]
    while len(operands) > 1:
        some, operands = operands[:7], operands[7:]
        lengths, sizes = sizes[:7], sizes[7:]
        copy = to.scratch((sum(lengths),))
        to.dispatch(concat_kernel(1, lengths), some, copy)
        operands, sizes = [copy, *operands], [sum(lengths), *sizes]
    return operands[0]
