"""Matrix products, plain or batched, with transposed operands and a fused epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.matmul import MatmulShape
from engine.kernels.matmul import matmul as matmul_kernels
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, definition, register, require
from engine.ops.pointwise import Unary, unary
from engine.ops.reduce import reduce_sum
from engine.ops.shape import reshape
from engine.specialize import choose_matmul


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
        bias=len(inputs) == 3,
    )


def _swap(x: Array, transposed: bool) -> Array:
    return np.swapaxes(x, -1, -2) if transposed else x


@register
class Matmul(Op):
    """y = activation(op(a) op(b) + bias).

    a [m, k] or [batch, m, k] and b [k, n] or [batch, k, n] (transposed where the attributes say
    so), bias [n]. Bias and activation are set by rewriting only.
    """

    name = "matmul"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) in (2, 3), self.name, "takes a, b and perhaps a bias", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        a, b = inputs[0].shape, inputs[1].shape
        alike = len(a) == len(b) and len(a) in (2, 3) and a[:-2] == b[:-2]
        require(alike, self.name, "needs two matrices or two equal batches of them", *inputs)
        s = _dimensions(inputs, attrs)
        inner_b = b[-1] if s.transpose_b else b[-2]
        require(s.k == inner_b, self.name, f"inner extents {s.k} and {inner_b} differ", *inputs)
        if s.bias:
            require(inputs[2].shape == (s.n,), self.name, f"bias must be [{s.n}]", *inputs)
        return TensorType((*a[:-2], s.m, s.n))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y = _swap(inputs[0], attrs["transpose_a"]) @ _swap(inputs[1], attrs["transpose_b"])
        if len(inputs) == 3:
            y = y + inputs[2]
        if attrs["activation"]:
            y = definition(attrs["activation"]).reference([y], {})
        return y

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        a, b = node.inputs[:2]
        if node.attrs["activation"] or len(node.inputs) == 3:
            return self._gradient_of_epilogue(node, upstream)
        ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
        if ta:
            grad_a = matmul(b, upstream, transpose_a=tb, transpose_b=True)
        else:
            grad_a = matmul(upstream, b, transpose_b=not tb)
        if tb:
            grad_b = matmul(upstream, a, transpose_a=True, transpose_b=ta)
        else:
            grad_b = matmul(a, upstream, transpose_a=not ta)
        return [grad_a, grad_b]

    def _gradient_of_epilogue(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        plain = {**node.attrs, "activation": ""}
        if node.attrs["activation"]:
            before = node.graph.add(self.name, node.inputs, **plain)
            after = unary(node.attrs["activation"], before)
            (through,) = definition(node.attrs["activation"]).gradient(after, upstream)
            assert through is not None
            upstream = through
        product = node.graph.add(self.name, node.inputs[:2], **plain)
        gradients = list(self.gradient(product, upstream))
        if len(node.inputs) == 3:
            gradients.append(reduce_sum(upstream, range(len(node.shape) - 1)))
        return gradients

    def lower(self, node: Node, to: Lowering) -> None:
        shape = _dimensions([value.type for value in node.inputs], node.attrs)
        choice = choose_matmul(shape.batch, shape.m, shape.n, shape.k, to.facts)
        kernels = matmul_kernels(shape, choice, _activation(node.attrs["activation"]))
        bias = list(node.inputs[2:])
        if len(kernels) == 1:
            to.dispatch(kernels[0], node.inputs, node)
            return
        parts = to.scratch((choice.split_k, shape.m, shape.n))
        to.dispatch(kernels[0], node.inputs[:2], parts)
        to.dispatch(kernels[1], [parts, *bias], node)

    def samples(self) -> Iterator[Sample]:
        sizes = ((1, 1, 1), (1, 8, 5), (5, 3, 7), (8, 4, 12), (13, 20, 37), (67, 36, 33))
        for ta in (False, True):
            for tb in (False, True):
                for m, n, k in sizes:
                    yield _sample(0, m, n, k, ta, tb)
                yield _sample(3, 5, 6, 7, ta, tb)
        yield _sample(0, 70, 65, 64, False, False)
        yield _sample(0, 9, 40, 1100, True, False)
        yield _sample(0, 19, 7, 11, False, False, bias=True)
        yield _sample(0, 40, 24, 640, False, True, bias=True, activation="gelu")


def _activation(name: str) -> str:
    if not name:
        return "{v}"
    op = definition(name)
    assert isinstance(op, Unary)
    return op.wgsl({}, "vec4<f32>", "{v}")


def _sample(
    batch: int,
    m: int,
    n: int,
    k: int,
    ta: bool,
    tb: bool,
    *,
    bias: bool = False,
    activation: str = "",
) -> Sample:
    lead = (batch,) if batch else ()
    a = (*lead, k, m) if ta else (*lead, m, k)
    b = (*lead, n, k) if tb else (*lead, k, n)
    shapes = (a, b, (n,)) if bias else (a, b)
    attrs = {"transpose_a": ta, "transpose_b": tb, "activation": activation}
    return Sample(shapes, attrs)


def matmul(a: Node, b: Node, *, transpose_a: bool = False, transpose_b: bool = False) -> Node:
    """op(a) @ op(b) for two matrices or two equal batches [batch, rows, columns]."""
    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b, "activation": ""}
    return a.graph.add("matmul", [a, b], **attrs)


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """X @ weight^T + bias for x [..., in], weight [out, in] (PyTorch's layout), bias [out]."""
    flat = reshape(x, (-1, x.shape[-1]))
    y = matmul(flat, weight, transpose_b=True)
    if bias is not None:
        y = y.graph.add("add", [y, bias])
    return reshape(y, (*x.shape[:-1], weight.shape[0]))
