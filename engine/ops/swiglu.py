"""SwiGLU: silu(gate) * up, from two tensors or from one that holds both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.operands import element, in_elements
from engine.kernels.splits import Given, Splits
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main, with_erf
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.pointwise import mul, silu
from engine.ops.unary import logistic

SHAPES = ((1, 2), (5, 14), (3, 16), (2, 3, 24))


def _kernel(rows: int, half: int, *, gradient: bool, splits: Splits | None = None) -> Kernel:
    """One invocation per element of the product: a gate and the `up` that lies `half` further.

    With `splits` their operands come in the place of x, or of the upstream g of a `gradient`, and
    that is the first result.
    """
    kind, n = element(half), in_elements(half)
    count = rows * n
    result = "y[i] = s * gate * x[at + {n}u];"
    if gradient:
        result = """let up = g[i] * s;
    y[at] = up * x[at + {n}u] * ({kind}(1.0) + gate * ({kind}(1.0) - s));
    y[at + {n}u] = up * gate;"""
    x, g = Given("x", kind, None if gradient else splits), Given("g", kind, splits)
    given = [x, g] if gradient else [x]
    finish = [g.finish("i")] if gradient else [x.finish("at"), x.finish(f"at + {n}u")]
    body = f"""
    let at = i / {n}u * {2 * n}u + i % {n}u;
    {" ".join(finish)}
    let gate = x[at];
    let s = {kind}(1.0) / ({kind}(1.0) + exp(min(-gate, {kind}(80.0))));
    {result.format(n=n, kind=kind)}"""
    reads = [binding for operand in given for binding in operand.reads()]
    writes = [binding for operand in given for binding in operand.writes()]
    source = bindings(reads, [*writes, ("y", kind)])
    source += given[-1].function() + linear_main(count, 64, body)
    label = "swiglu_concat_grad" if gradient else "swiglu_concat"
    flops = 8 * rows * half + given[-1].flops
    return Kernel(label, with_erf(source), linear_grid(count, 64), flops)


@register
class SwigluConcat(Op):
    """silu(x[..., :n]) * x[..., n:] for x [..., 2 n]."""

    name = "swiglu_concat"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 1 and inputs[0].dtype == "f32" and len(inputs[0].shape) >= 1
        good = good and inputs[0].shape[-1] % 2 == 0
        require(good, self.name, "takes one f32 tensor with an even last axis", *inputs)
        return TensorType((*inputs[0].shape[:-1], inputs[0].shape[-1] // 2))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        gate, up = np.split(inputs[0], 2, axis=-1)
        return gate * logistic(gate) * up

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [node.graph.add("swiglu_concat_grad", [*node.inputs, upstream])]

    def lower(self, node: Node, to: Lowering) -> None:
        half = node.shape[-1]
        (x,) = node.inputs
        rest = to.take_unfinished(x, element(half), 2)
        splits = rest.splits if rest else None
        kernel = _kernel(node.type.size // half, half, gradient=False, splits=splits)
        given, written = (rest.reads, [x, node]) if rest else ([x], [node])
        to.dispatch(kernel, given, *written)

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,), low=-3, high=3)


@register
class SwigluConcatGrad(Op):
    """Gradient of swiglu_concat, [..., 2 n], from x [..., 2 n] and upstream [..., n]."""

    name = "swiglu_concat_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 2 and all(t.dtype == "f32" and t.shape for t in inputs)
        good = good and inputs[0].shape == (*inputs[1].shape[:-1], 2 * inputs[1].shape[-1])
        require(good, self.name, "takes f32 x [..., 2 n] and upstream [..., n]", *inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, g = inputs
        gate, up = np.split(x, 2, axis=-1)
        s = logistic(gate)
        return np.concatenate([g * s * up * (1 + gate * (1 - s)), g * s * gate], axis=-1)

    def lower(self, node: Node, to: Lowering) -> None:
        half = node.shape[-1] // 2
        x, g = node.inputs
        rest = to.take_unfinished(g, element(half), 3)
        splits = rest.splits if rest else None
        kernel = _kernel(node.type.size // (2 * half), half, gradient=True, splits=splits)
        given, written = (rest.reads, [g, node]) if rest else ([g], [node])
        to.dispatch(kernel, [x, *given], *written)

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape, (*shape[:-1], shape[-1] // 2)), low=-3, high=3)


def swiglu(gate: Node, up: Node) -> Node:
    """silu(gate) * up."""
    return mul(silu(gate), up)


def swiglu_concat(x: Node) -> Node:
    """silu(gate) * up of x [..., 2 n], which holds gate before up in its last axis."""
    return x.graph.add("swiglu_concat", [x])
