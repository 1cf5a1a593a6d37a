"""Normalisations that a pointwise function follows, as one op; made by rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.graph import Node, TensorType
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, definition, register, require
from engine.ops.norm import NORMALIZATIONS, Normalization
from engine.ops.pointwise import Affine, Unary, emitter

NORMS = tuple(op.name for op in NORMALIZATIONS)
"""Ops that an activation may follow."""


@register
class ActivatedNorm(Op):
    """`activation` of `norm`: both (op name, its attributes), the first one of one operand."""

    name = "activated_norm"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        (norm, own), (activation, _) = attrs["norm"], attrs["activation"]
        good = norm in NORMS and not own.get("silu")
        good = good and isinstance(definition(activation), Unary | Affine)
        require(good, self.name, f"{activation} cannot follow {norm}", *inputs)
        return definition(norm).infer(inputs, own)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        (norm, own), (activation, how) = attrs["norm"], attrs["activation"]
        normed = definition(norm).reference(inputs, own)
        return definition(activation).reference([normed], how)

    def lower(self, node: Node, to: Lowering) -> None:
        (norm, own), (activation, how) = node.attrs["norm"], node.attrs["activation"]
        op = definition(norm)
        assert isinstance(op, Normalization)
        g = op.with_affine(node.inputs[0].type, own, len(node.inputs) - 1)
        g = replace(g, activation=emitter(activation, how))
        op.emit(f"{norm}+{activation}", g, node.inputs, to, node)

    def samples(self) -> Iterator[Sample]:
        row = {"eps": 1e-5}
        yield _sample(((2, 5),), ("layer_norm", row), ("gelu", {}))
        yield _sample(((7, 67), (67,), (67,)), ("layer_norm", row), ("gelu", {}))
        yield _sample(((3, 64), (64,)), ("rms_norm", row), ("affine", {"scale": 2.0, "shift": 0.5}))
        grouped = {"groups": 2, "eps": 1e-5, "silu": False}
        yield _sample(((1, 35, 37, 8), (8,), (8,)), ("group_norm", grouped), ("tanh", {}))


def _sample(
    shapes: tuple[tuple[int, ...], ...],
    norm: tuple[str, dict[str, float]],
    activation: tuple[str, dict[str, float]],
) -> Sample:
    return Sample(shapes, {"norm": norm, "activation": activation})
