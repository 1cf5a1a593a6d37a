"""Products with several weights that lie next to each other in memory, as one; made by rewriting.

The weights keep their names and owners: kernels bind the run of buffers that the memory planner
lays out one after another anyway, and the gradients' run alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.epilogue import Epilogue
from engine.kernels.layout import concat as concat_kernel
from engine.kernels.layout import strided_copy
from engine.kernels.matmul import MatmulShape
from engine.kernels.matmul import matmul as matmul_kernels
from engine.kernels.operands import Paired, is_wide
from engine.kernels.product import Access
from engine.lower import Lowering, Operand
from engine.memory import ALIGNMENT, pack_runs
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.epilogue import emit_product
from engine.ops.extra import extra
from engine.ops.factors import Factors, ProductOp
from engine.ops.unary import logistic
from engine.specialize import choose_matmul


@register
class PackedMatmul(ProductOp):
    """y[m, sum n] = x[m, k] [w0; w1; ...]^T for weights [n, k]."""

    name = "packed_matmul"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) >= 3 and _matrices(inputs)
        require(good, self.name, "takes f32 matrices x and at least two weights", *inputs)
        x, *weights = (t.shape for t in inputs)
        same = all(weight[1] == x[1] for weight in weights)
        require(same, self.name, f"weights must be [n, {x[1]}]", *inputs)
        return TensorType((x[0], sum(weight[0] for weight in weights)))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0] @ np.concatenate(inputs[1:]).T

    def factors(
        self, rows: TensorType, others: Sequence[Node], attrs: Attrs, to: Lowering
    ) -> Factors:
        (m, k), n = rows.shape, sum(weight.shape[0] for weight in others)
        shape = MatmulShape(1, m, n, k, transpose_b=True)
        access = Access(b=shape.b(to.stored(others[0])))
        return Factors(shape, _packed(others, to), access=access)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        return range(1, len(inputs)) if is_wide(inputs[0].shape[1]) else ()

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x, *weights = node.inputs
        grad_x = node.graph.add(f"{self.name}_input_grad", [upstream, *weights])
        widths = tuple(weight.shape[0] for weight in weights)
        grad_w = node.graph.add(f"{self.name}_weight_grad", [upstream, x], widths=widths)
        return [grad_x, grad_w, *(extra(grad_w, number) for number in range(len(weights) - 1))]

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1, 1), (1, 1), (1, 1)))
        yield Sample(((5, 64), (3, 64), (7, 64), (2, 64)))
        yield Sample(((7, 16), (8, 16), (4, 16)))
        yield Sample(((9, 640), (11, 640), (5, 640)))


@register
class PackedMatmulInputGrad(Op):
    """dx[m, k] = g[m, sum n] [w0; w1; ...] for weights [n, k]."""

    name = "packed_matmul_input_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) >= 3 and _matrices(inputs)
        require(good, self.name, "takes f32 matrices g and at least two weights", *inputs)
        g, *weights = (t.shape for t in inputs)
        same = len({weight[1] for weight in weights}) == 1
        same = same and sum(weight[0] for weight in weights) == g[1]
        require(same, self.name, f"weights must have {g[1]} rows together", *inputs)
        return TensorType((g[0], weights[0][1]))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0] @ np.concatenate(inputs[1:])

    def lower(self, node: Node, to: Lowering) -> None:
        g, *weights = node.inputs
        (m, k), n = g.shape, node.shape[1]
        _emit(to, MatmulShape(1, m, n, k), [g, _packed(weights, to)], node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1, 2), (1, 1), (1, 1)))
        yield Sample(((5, 12), (3, 64), (7, 64), (2, 64)))
        yield Sample(((9, 641), (411, 7), (230, 7)))


@register
class PackedMatmulWeightGrad(Op):
    """dw = g[m, sum n]^T x[m, k] in parts of `widths` rows: the first, then further results."""

    name = "packed_matmul_weight_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 2 and _matrices(inputs)
        good = good and inputs[0].shape[0] == inputs[1].shape[0]
        require(good, self.name, "takes f32 matrices g and x with equally many rows", *inputs)
        widths = attrs["widths"]
        fits = min(widths) >= 1 and sum(widths) == inputs[0].shape[1]
        require(fits, self.name, f"widths {widths} do not fill g", *inputs)
        return TensorType((widths[0], inputs[1].shape[1]))

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        return tuple(TensorType((n, inputs[1].shape[1])) for n in attrs["widths"][1:])

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        whole = inputs[0].T @ inputs[1]
        return tuple(np.split(whole, np.cumsum(attrs["widths"])[:-1]))

    def lower(self, node: Node, to: Lowering) -> None:
        (m, rows), columns = node.inputs[0].shape, node.shape[1]
        shape = MatmulShape(1, rows, columns, m, transpose_a=True)
        widths = node.attrs["widths"]
        written = [to.buffer(node), *(to.extra(node, k) for k in range(len(widths) - 1))]
        kept = [buffer for buffer in written if buffer is not None]
        run = _run(kept, to) if len(kept) == len(widths) else None
        if run is not None:
            _emit(to, shape, node.inputs, run)
            return
        whole = to.scratch((rows, columns))
        _emit(to, shape, node.inputs, whole)
        starts = accumulate(widths, initial=0)
        for buffer, start, width in zip(written, starts, widths, strict=False):
            if buffer is not None:
                copy = strided_copy("copy", (width * columns,), (1,), start * columns)
                to.dispatch(copy, [whole], buffer)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1, 2), (1, 1)), {"widths": (1, 1)})
        yield Sample(((5, 12), (5, 64)), {"widths": (3, 7, 2)})
        yield Sample(((640, 20), (640, 8)), {"widths": (8, 12)})


@register
class GatedMatmul(ProductOp):
    """y[m, n] = silu(x gate^T) (x up^T) for x [m, k] and weights gate and up [n, k]; n is even."""

    name = "gated_matmul"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 3 and _matrices(inputs)
        require(good, self.name, "takes f32 matrices x, gate and up", *inputs)
        x, gate, up = inputs
        fits = gate == up and gate.shape[1] == x.shape[1] and gate.shape[0] % 2 == 0
        require(fits, self.name, "gate and up must be [n, k] for an even n", *inputs)
        return TensorType((x.shape[0], gate.shape[0]))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, gate, up = inputs
        gates = x @ gate.T
        return gates * logistic(gates) * (x @ up.T)

    def factors(
        self, rows: TensorType, others: Sequence[Node], attrs: Attrs, to: Lowering
    ) -> Factors:
        (m, k), n = rows.shape, 2 * others[0].shape[0]
        shape = MatmulShape(1, m, n, k, transpose_b=True)
        access = Access("gated_matmul", b=Paired(n, k, to.stored(others[0])))
        return Factors(shape, _packed(others, to), Epilogue(gated=True), access=access)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        return (1, 2) if is_wide(inputs[0].shape[1]) else ()

    def samples(self) -> Iterator[Sample]:
        for m, n, k in ((1, 2, 1), (5, 6, 64), (1, 34, 40), (3, 70, 7), (9, 12, 640)):
            yield Sample(((m, k), (n, k), (n, k)))


def _matrices(types: Sequence[TensorType]) -> bool:
    return all(len(t.shape) == 2 and t.dtype == "f32" for t in types)


def _emit(to: Lowering, shape: MatmulShape, factors: Sequence[Operand], result: Operand) -> None:
    """Append the one or two launches of a product."""
    choice = choose_matmul(*shape.extents, to.facts, shape.layout)
    emit_product(to, matmul_kernels(shape, choice), shape, choice, factors, result)


def _packed(weights: Sequence[Node], to: Lowering) -> Operand:
    """The weights one after another: where they are, or else a copy."""
    return _run([to.buffer(weight) for weight in weights], to) or _joined(weights, to)


def _run(buffers: Sequence[int], to: Lowering) -> Operand | None:
    """The buffers if they are packed and nothing lies between them."""
    ids = tuple(buffers)
    pack = to.buffers[ids[0]].pack
    members = [b for b in to.buffers if b.pack and b.pack == pack]
    places = {b.id: place for place, b in enumerate(members)}
    first = places.get(ids[0], -1)
    neighbours = all(places.get(b) == first + k for k, b in enumerate(ids))
    if first < 0 or not neighbours or any(to.buffers[b].type.nbytes % ALIGNMENT for b in ids):
        return None
    limit = min(to.facts.max_binding_bytes, to.facts.max_buffer_bytes)
    runs = pack_runs([b.type.nbytes for b in members], limit)
    together = any(a <= first and first + len(ids) <= b for a, b in runs)
    return ids if together else None


def _joined(weights: Sequence[Node], to: Lowering) -> Operand:
    """A copy in which the weights follow each other; eight bindings bound how many at a time."""
    operands: list[Operand] = [to.buffer(weight) for weight in weights]
    stored = to.stored(operands[0])
    sizes = [weight.type.size for weight in weights]
    while len(operands) > 1:
        some, operands = operands[:7], operands[7:]
        lengths, sizes = sizes[:7], sizes[7:]
        copy = to.scratch((sum(lengths),), stored)
        to.dispatch(concat_kernel(1, lengths, stored), some, copy)
        operands, sizes = [copy, *operands], [sum(lengths), *sizes]
    return operands[0]
