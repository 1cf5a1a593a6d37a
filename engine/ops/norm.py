"""Layer, root-mean-square and group normalisation, each with affine operands.

The forward op has (mean, 1 / standard deviation) of every group as a further result, which is
written only when a gradient reads it; see `engine.ops.norm_grad`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import norm as kernels
from engine.kernels.norm import Cut, Groups
from engine.lower import Lowering, Operand, Unfinished
from engine.op import Array, Attrs, Op, Sample, add_definition, require
from engine.ops.extra import extra
from engine.ops.unary import logistic
from engine.specialize import group_slices, row_lanes


class Normalization(Op):
    """y = (x - mean) / sqrt(var + eps) of each group, then * w + b where given, then SiLU."""

    affine: tuple[str, ...] = ("weight", "bias")
    optional = True
    """Whether the affine operands may be left out."""

    def groups(self, x: TensorType, attrs: Attrs) -> Groups:
        """The groups of x, without affine operands."""
        *lead, channels = x.shape
        return Groups(prod(lead), 1, channels, 1, attrs["eps"])

    def check(self, x: TensorType, attrs: Attrs) -> None:
        """What x itself must satisfy."""
        require(len(x.shape) >= 1, self.name, "x must have rank 1 or more", x)

    def with_affine(self, x: TensorType, attrs: Attrs, given: int) -> Groups:
        """The groups of x with the first `given` affine operands."""
        return replace(self.groups(x, attrs), weight=given > 0, bias=given > 1)

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        full = 1 + len(self.affine)
        takes = f"takes x, {' and '.join(self.affine)}{', or x alone' if self.optional else ''}"
        good = len(inputs) == full or (self.optional and len(inputs) == 1)
        require(good, self.name, takes, *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        self.check(inputs[0], attrs)
        channels = inputs[0].shape[-1:]
        fits = all(t.shape == channels for t in inputs[1:])
        require(fits, self.name, f"{' and '.join(self.affine)} must be {list(channels)}", *inputs)
        require(attrs["eps"] > 0, self.name, "eps must be positive", *inputs)
        return inputs[0]

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        return (TensorType((self.groups(inputs[0], attrs).rows, 2)),)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        g = self.groups(TensorType(inputs[0].shape), attrs)
        x = grouped(inputs[0], g)
        mean = x.mean(axis=(1, 3), keepdims=True) * g.centred
        inv = 1 / np.sqrt(((x - mean) ** 2).mean(axis=(1, 3), keepdims=True) + g.eps)
        y = ((x - mean) * inv).reshape(inputs[0].shape)
        for value, apply in zip(inputs[1:], (np.multiply, np.add), strict=False):
            y = apply(y, value)
        y = y * logistic(y) if g.silu else y
        return y, np.stack([mean.reshape(-1), inv.reshape(-1)], axis=1)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x, *affine = node.inputs
        silu = self.groups(x.type, node.attrs).silu
        known = [x, extra(node, 0), upstream]
        needed = affine if silu else affine[:1]
        grads = [node.graph.add(f"{self.name}_grad", [*known, *needed], **node.attrs)]
        if affine:
            used = affine if silu else []
            grads.append(node.graph.add(f"{self.name}_affine_grad", [*known, *used], **node.attrs))
        return [*grads, extra(grads[1], 0)] if len(affine) == 2 else grads

    def lower(self, node: Node, to: Lowering) -> None:
        g = self.with_affine(node.inputs[0].type, node.attrs, len(node.inputs) - 1)
        self.emit(self.name, g, node.inputs, to, node, to.extra(node, 0))

    def emit(
        self,
        label: str,
        g: Groups,
        inputs: Sequence[Node],
        to: Lowering,
        result: Node,
        statistics: int | None = None,
    ) -> None:
        """Append the dispatches that normalise the first of `inputs` by the others."""
        x, *affine = inputs
        cut = cut_of(g, to)
        parts: list[int] = []
        if cut.slices > 1:
            parts = [to.scratch((g.rows, cut.slices, 2))]
            to.dispatch(kernels.moments(g, cut), [x], *parts)
        writes: list[Operand] = [result] if statistics is None else [result, statistics]
        reads: list[Operand] = [x]
        rest = unfinished(to, x, g, cut, bound=len(inputs) + len(writes))
        if rest:
            reads, writes = [*rest.reads], [x, *writes]
        splits = rest.splits if rest else None
        kernel = kernels.normalize(label, g, cut, statistics=statistics is not None, splits=splits)
        to.dispatch(kernel, [*reads, *affine, *parts], *writes)

    def samples(self) -> Iterator[Sample]:
        for shape in ((2, 5), (3, 64), (7, 67), (2, 3, 130)):
            for affine in ((), (shape[-1:],) * len(self.affine)):
                yield Sample((shape, *affine), {"eps": 1e-5})


class LayerNorm(Normalization):
    """Normalisation of each row, the last axis."""

    name = "layer_norm"


class RmsNorm(Normalization):
    """x / sqrt(mean(x^2) + eps) of each row, the last axis, then * w."""

    name = "rms_norm"
    affine = ("weight",)

    def groups(self, x: TensorType, attrs: Attrs) -> Groups:
        return replace(super().groups(x, attrs), centred=False)


class GroupNorm(Normalization):
    """Normalisation of x [n, h, w, c] over each image's groups of c / groups channels."""

    name = "group_norm"
    optional = False

    def groups(self, x: TensorType, attrs: Attrs) -> Groups:
        images, height, width, channels = x.shape
        g = Groups(images, height * width, channels, attrs["groups"], attrs["eps"])
        return replace(g, silu=attrs["silu"])

    def check(self, x: TensorType, attrs: Attrs) -> None:
        require(len(x.shape) == 4, self.name, "x must be [n, h, w, c]", x)
        good = attrs["groups"] >= 1 and x.shape[3] % attrs["groups"] == 0
        require(good, self.name, f"{attrs['groups']} groups do not divide the channels", x)

    def samples(self) -> Iterator[Sample]:
        for shape, groups in GROUPED:
            for silu in (False, True):
                attrs = {"groups": groups, "eps": 1e-5, "silu": silu}
                yield Sample((shape, shape[-1:], shape[-1:]), attrs)


GROUPED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 1, 2, 3), 1),
    ((2, 3, 5, 6), 2),
    ((1, 5, 3, 24), 3),
    ((3, 2, 2, 7), 7),
    ((1, 35, 37, 8), 2),
)


def cut_of(g: Groups, to: Lowering) -> Cut:
    """How launches share the groups; no slice is empty."""
    length = ceil(g.steps / group_slices(g.rows, g.size, to.facts))
    slices = ceil(g.steps / length)
    return Cut(slices, row_lanes(length, to.facts, slices * g.rows))


def unfinished(to: Lowering, x: Node, g: Groups, cut: Cut, bound: int) -> Unfinished | None:
    """What is left of the product that gives x, if the launch that reads x by groups can do it."""
    return None if cut.slices > 1 else to.take_unfinished(x, g.element, bound)


def grouped(x: Array, g: Groups) -> Array:
    """X as [images, pixels, groups, channels of a group]."""
    return x.reshape(g.images, g.pixels, g.groups, g.width)


NORMALIZATIONS = (LayerNorm(), RmsNorm(), GroupNorm())

for _op in NORMALIZATIONS:
    add_definition(_op)


def layer_norm(
    x: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float
) -> Node:
    """Layer normalisation over the last axis, with weight and bias [columns] or neither."""
    affine = [weight, bias] if weight is not None and bias is not None else []
    return x.graph.add("layer_norm", [x, *affine], eps=float(eps))


def rms_norm(x: Node, weight: Node | None = None, *, eps: float) -> Node:
    """x / sqrt(mean(x^2) + eps) over the last axis, times weight [columns] if given."""
    return x.graph.add("rms_norm", [x, *([weight] if weight is not None else [])], eps=float(eps))


def group_norm(
    x: Node, weight: Node, bias: Node, groups: int, *, eps: float, silu: bool = False
) -> Node:
    """Group normalisation of x [n, h, w, c] with weight and bias [c]; SiLU follows if asked."""
    attrs = {"groups": groups, "eps": float(eps), "silu": silu}
    return x.graph.add("group_norm", [x, weight, bias], **attrs)


def group_norm_silu(x: Node, weight: Node, bias: Node, groups: int, *, eps: float) -> Node:
    """`group_norm` followed by SiLU, in one op."""
    return group_norm(x, weight, bias, groups, eps=eps, silu=True)
