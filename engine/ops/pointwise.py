"""Pointwise ops: the whole vocabulary in one place, and chains of them fused into one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.errors import GraphError
from engine.graph import Node, TensorType
from engine.kernels.wgsl import Step
from engine.lower import Lowering
from engine.op import Array, Attrs, Sample, definition, register
from engine.ops.binary import Binary, add, div, greater, maximum, minimum, mul, sub
from engine.ops.elementwise import Affine, Expand, Pointwise, affine, emit_pointwise, expand, neg
from engine.ops.unary import (
    Unary,
    UnaryGrad,
    gelu,
    gelu_tanh,
    relu,
    sigmoid,
    silu,
    square,
    tanh,
    unary,
)

__all__ = [
    "Affine",
    "Binary",
    "Expand",
    "FusedPointwise",
    "Pointwise",
    "Unary",
    "UnaryGrad",
    "add",
    "affine",
    "div",
    "emitter",
    "expand",
    "gelu",
    "gelu_tanh",
    "greater",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "relu",
    "sigmoid",
    "silu",
    "square",
    "sub",
    "tanh",
    "unary",
]


@register
class FusedPointwise(Pointwise):
    """Several pointwise ops in one kernel; made by rewriting, never by models.

    Attribute `steps` is a tuple of (op name, attrs, argument indices): indices count the
    operands first, then earlier steps.
    """

    name = "fused"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        types = list(inputs)
        for op, own, arguments in attrs["steps"]:
            types.append(definition(op).infer([types[a] for a in arguments], own))
        return types[-1]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        values = list(inputs)
        for op, own, arguments in attrs["steps"]:
            values.append(definition(op).reference([values[a] for a in arguments], own))
        return values[-1]

    def lower(self, node: Node, to: Lowering) -> None:
        steps = [
            Step(emitter(op, own), tuple(arguments)) for op, own, arguments in node.attrs["steps"]
        ]
        label = "+".join(op for op, _, _ in node.attrs["steps"])
        emit_pointwise(to, label, steps, node)

    def samples(self) -> Iterator[Sample]:
        steps: tuple[Any, ...] = (
            ("add", {}, (0, 1)),
            ("gelu", {}, (3,)),
            ("mul", {}, (4, 2)),
            ("affine", {"scale": 2.0, "shift": 1.0}, (5,)),
        )
        for rows, columns in ((1, 1), (5, 7), (13, 8)):
            yield Sample(((rows, columns), (columns,), (1,)), {"steps": steps})


def emitter(op: str, attrs: Attrs) -> Callable[..., str]:
    """WGSL of a pointwise op as `engine.kernels.pointwise.Step` wants it."""
    found = definition(op)
    if not isinstance(found, Pointwise):
        raise GraphError(f"fused: {op} is not pointwise")
    return lambda kind, *args: found.wgsl(attrs, kind, *args)
