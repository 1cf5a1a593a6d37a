"""Matrix products, plain or batched, with transposed operands and an epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.matmul import MatmulShape
from engine.kernels.operands import is_wide
from engine.kernels.product import Access
from engine.lower import Lowering
from engine.op import Array, Attrs, Sample, register, require
from engine.ops.epilogue import (
    apply_epilogue,
    check_epilogue,
    epilogue_of,
    through_epilogue,
)
from engine.ops.factors import Factors, ProductOp
from engine.ops.shape import reshape


def _dimensions(inputs: Sequence[TensorType], attrs: Attrs) -> MatmulShape:
    a, b = inputs[0].shape, inputs[1].shape
    rows, inner = (a[-1], a[-2]) if attrs["transpose_a"] else (a[-2], a[-1])
    columns = b[-2] if attrs["transpose_b"] else b[-1]
    return MatmulShape(
        batch=a[0] if len(a) == 3 else 1,
        m=rows,
        n=columns,
        k=inner,
        transpose_a=attrs["transpose_a"],
        transpose_b=attrs["transpose_b"],
    )


def _swap(x: Array, transposed: bool) -> Array:
    return np.swapaxes(x, -1, -2) if transposed else x


@register
class Matmul(ProductOp):
    """y = op(a) op(b), then the epilogue (engine.ops.epilogue).

    a [m, k] or [batch, m, k] and b [k, n] or [batch, k, n], transposed where the attributes say
    so.
    """

    name = "matmul"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) >= 2, self.name, "takes a and b", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        a, b = inputs[0].shape, inputs[1].shape
        alike = len(a) == len(b) and len(a) in (2, 3) and a[:-2] == b[:-2]
        require(alike, self.name, "needs two matrices or two equal batches of them", *inputs)
        s = _dimensions(inputs, attrs)
        inner_b = b[-1] if s.transpose_b else b[-2]
        require(s.k == inner_b, self.name, f"inner extents {s.k} and {inner_b} differ", *inputs)
        return check_epilogue(self.name, TensorType((*a[:-2], s.m, s.n)), inputs, attrs)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y = _swap(inputs[0], attrs["transpose_a"]) @ _swap(inputs[1], attrs["transpose_b"])
        return apply_epilogue(y, inputs, attrs)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        a, b = node.inputs[:2]
        upstream, others = through_epilogue(node, upstream)
        ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
        if ta:
            grad_a = matmul(b, upstream, transpose_a=tb, transpose_b=True)
        else:
            grad_a = matmul(upstream, b, transpose_b=not tb)
        if tb:
            grad_b = matmul(upstream, a, transpose_a=True, transpose_b=ta)
        else:
            grad_b = matmul(a, upstream, transpose_a=not ta)
        return [grad_a, grad_b, *others]

    def factors(
        self, rows: TensorType, others: Sequence[Node], attrs: Attrs, to: Lowering
    ) -> Factors:
        b, *operands = others
        shape = _dimensions([rows, b.type], attrs)
        result = (*rows.shape[:-2], shape.m, shape.n)
        access = Access(b=shape.b(to.stored(b)))
        return Factors(shape, b, epilogue_of(operands, result, attrs), operands, access)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        return (1,) if is_wide(inputs[1].shape[-1]) else ()

    def samples(self) -> Iterator[Sample]:
        sizes = ((1, 1, 1), (1, 8, 5), (5, 3, 7), (8, 4, 12), (13, 20, 37), (67, 36, 33))
        for ta in (False, True):
            for tb in (False, True):
                for m, n, k in sizes:
                    yield _sample(0, m, n, k, ta, tb)
                yield _sample(3, 5, 6, 7, ta, tb)
        yield _sample(0, 70, 65, 64, False, False)
        yield _sample(0, 9, 40, 1100, True, False)
        bias: Steps = (("add", {}, (0, 1)),)
        yield _sample(0, 19, 7, 11, False, False, ((7,),), bias)
        gated: Steps = (("add", {}, (0, 1)), ("gelu", {}, (4,)), ("mul", {}, (5, 3)))
        residual: Steps = (*gated, ("add", {}, (2, 6)))
        for n in (7, 8):
            yield _sample(0, 9, n, 11, False, True, ((n,), (9, n), (1,)), residual)
            yield _sample(3, 5, n, 6, True, False, ((1, n), (3, 5, n), (1,)), residual)
        # Deep enough for split-K, with its epilogue in the second launch.
        for n in (23, 24):
            yield _sample(0, 40, n, 640, False, True, ((n,), (40, n), (1,)), residual)


Steps = tuple[tuple[str, dict[str, Any], tuple[int, ...]], ...]


def _sample(
    batch: int,
    m: int,
    n: int,
    k: int,
    ta: bool,
    tb: bool,
    operands: tuple[tuple[int, ...], ...] = (),
    epilogue: Steps = (),
) -> Sample:
    lead = (batch,) if batch else ()
    a = (*lead, k, m) if ta else (*lead, m, k)
    b = (*lead, n, k) if tb else (*lead, k, n)
    attrs = {"transpose_a": ta, "transpose_b": tb, "epilogue": epilogue}
    return Sample((a, b, *operands), attrs)


def matmul(a: Node, b: Node, *, transpose_a: bool = False, transpose_b: bool = False) -> Node:
    """op(a) @ op(b) for two matrices or two equal batches [batch, rows, columns]."""
    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b, "epilogue": ()}
    return a.graph.add("matmul", [a, b], **attrs)


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x @ weight^T + bias for x [..., in], weight [out, in] (PyTorch's layout), bias [out]."""
    flat = reshape(x, (-1, x.shape[-1]))
    y = matmul(flat, weight, transpose_b=True)
    if bias is not None:
        y = y.graph.add("add", [y, bias])
    return reshape(y, (*x.shape[:-1], weight.shape[0]))
