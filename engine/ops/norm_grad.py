"""Gradients of the normalisations, from the statistics that the forward op keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from engine.graph import Node, TensorType
from engine.kernels import norm_grad as kernels
from engine.kernels.columns import SIZES, column_lanes
from engine.kernels.norm import Groups
from engine.kernels.operands import in_elements
from engine.kernels.wgsl import Kernel
from engine.lower import Lowering, Operand
from engine.op import Array, Attrs, Op, Sample, add_definition, require
from engine.ops.norm import NORMALIZATIONS, Normalization, cut_of, grouped, unfinished
from engine.ops.reduce import lower_sum
from engine.ops.unary import logistic

T = TypeVar("T")


class NormGrad(Op):
    """Dx from x, the statistics, upstream, the weight and (with SiLU) the bias, as given.

    With attribute `plus`, made by rewriting, the last operand is added: what reached x beside the
    normalisation.
    """

    def __init__(self, forward: Normalization) -> None:
        self.forward, self.name = forward, f"{forward.name}_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        own, plus = _without_plus(inputs, attrs)
        _check_gradient(self.forward, self.name, own, attrs)
        fits = all(t == inputs[0] for t in plus)
        require(fits, self.name, "what is added must be like x", *inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        own, plus = _without_plus(inputs, attrs)
        g, hat, through, inv = _backward(self.forward, own, attrs)
        if len(own) > 3:
            through = through * _grouped_channels(own[3], g)
        slope = (through * hat).mean(axis=(1, 3), keepdims=True)
        centre = through.mean(axis=(1, 3), keepdims=True) * g.centred
        dx = (inv * (through - centre - hat * slope)).reshape(own[0].shape)
        return sum(plus, start=dx)

    def lower(self, node: Node, to: Lowering) -> None:
        own, plus = _without_plus(node.inputs, node.attrs)
        g = self.forward.with_affine(own[0].type, node.attrs, len(own) - 3)
        cut = cut_of(g, to)
        parts: list[int] = []
        if cut.slices > 1:
            parts = [to.scratch((g.rows, cut.slices, 2))]
            to.dispatch(kernels.gradient_sums(g, cut), own, *parts)
        x, statistics, upstream, *affine = own
        given: list[Operand] = [upstream]
        writes: list[Operand] = [node]
        rest = unfinished(to, upstream, g, cut, bound=len(node.inputs) + 1)
        if rest:
            given, writes = [*rest.reads], [upstream, node]
        splits = rest.splits if rest else None

        def with_lanes(lanes: int) -> Kernel:
            own = replace(cut, lanes=lanes)
            return kernels.normalize_grad(self.name, g, own, plus=bool(plus), splits=splits)

        kernel = with_lanes(cut.lanes)
        if cut.lanes > 1:
            others = [with_lanes(lanes) for lanes in SIZES if lanes != cut.lanes]
            kernel = replace(kernel, resized=(*kernel.resized, *others))
        to.dispatch(kernel, [x, statistics, *given, *affine, *plus, *parts], *writes)

    def samples(self) -> Iterator[Sample]:
        for sample in self.forward.samples():
            silu = sample.attrs.get("silu", False)
            made = _gradient_sample(self.forward, sample, sample.shapes[1 : 3 if silu else 2])
            yield made
            if len(sample.shapes) > 1:
                attrs = {**made.attrs, "plus": True}
                yield replace(made, shapes=(*made.shapes, sample.shapes[0]), attrs=attrs)


class NormAffineGrad(Op):
    """Dw, and db as a further result, from x, the statistics, upstream and (with SiLU) w and b."""

    def __init__(self, forward: Normalization) -> None:
        self.forward, self.name = forward, f"{forward.name}_affine_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        _check_gradient(self.forward, self.name, inputs, attrs)
        return TensorType(inputs[0].shape[-1:])

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape[-1:]),) * (len(self.forward.affine) - 1)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        _, hat, through, _ = _backward(self.forward, inputs, attrs)
        sums = [(through * hat).sum(axis=(0, 1)).reshape(-1), through.sum(axis=(0, 1)).reshape(-1)]
        return tuple(sums[: len(self.forward.affine)])

    def lower(self, node: Node, to: Lowering) -> None:
        g = self.forward.with_affine(node.inputs[0].type, node.attrs, len(node.inputs) - 3)
        bias = to.extra(node, 0)
        results = [to.buffer(node)] if bias is None else [to.buffer(node), bias]
        elements = in_elements(g.width) * g.groups
        lanes = 1 if to.facts.is_cpu else column_lanes(1, elements, g.images * g.pixels)
        slices = kernels.affine_grad_parts(g, lanes)
        kernel = kernels.affine_grad(g, lanes, bias is not None)
        if slices == 1:
            to.dispatch(kernel, node.inputs, *results)
            return
        parts = [to.scratch((slices, g.channels)) for _ in results]
        to.dispatch(kernel, node.inputs, *parts)
        for part, result in zip(parts, results, strict=True):
            lower_sum(to, part, (1, slices, g.channels), result)

    def samples(self) -> Iterator[Sample]:
        for sample in self.forward.samples():
            silu = sample.attrs.get("silu", False)
            yield _gradient_sample(self.forward, sample, sample.shapes[1 : 3 if silu else 1])


def _without_plus(inputs: Sequence[T], attrs: Attrs) -> tuple[list[T], list[T]]:
    """The gradient's own operands, and what is added to it."""
    own = len(inputs) - bool(attrs.get("plus"))
    return list(inputs[:own]), list(inputs[own:])


def _grouped_channels(values: Array, g: Groups) -> Array:
    return values.reshape(1, 1, g.groups, g.width)


def _backward(
    forward: Normalization, inputs: Sequence[Array], attrs: Attrs
) -> tuple[Groups, Array, Array, Array]:
    """(groups, normalised x, upstream led back through SiLU, 1 / deviation)."""
    x, statistics, upstream, *affine = inputs
    g = forward.groups(TensorType(x.shape), attrs)
    mean, inv = (statistics[:, k].reshape(g.images, 1, g.groups, 1) for k in range(2))
    hat = (grouped(x, g) - mean * g.centred) * inv
    through = grouped(upstream, g)
    if g.silu:
        weight, bias = (_grouped_channels(value, g) for value in affine)
        u = hat * weight + bias
        s = logistic(u)
        through = through * s * (1 + u * (1 - s))
    return g, hat, through, inv


def _check_gradient(
    forward: Normalization, name: str, inputs: Sequence[TensorType], attrs: Attrs
) -> None:
    require(len(inputs) >= 3, name, "takes x, statistics, upstream and affine operands", *inputs)
    require(all(t.dtype == "f32" for t in inputs), name, "operands must be f32", *inputs)
    x, statistics, upstream, *affine = inputs
    forward.check(x, attrs)
    good = statistics.shape == (forward.groups(x, attrs).rows, 2) and upstream == x
    require(good, name, "statistics or upstream do not fit x", *inputs)
    require(all(t.shape == x.shape[-1:] for t in affine), name, "affine operands differ", *inputs)


def _gradient_sample(
    forward: Normalization, sample: Sample, affine: tuple[tuple[int, ...], ...]
) -> Sample:
    x = sample.shapes[0]
    rows = forward.groups(TensorType(x), sample.attrs).rows
    return Sample((x, (rows, 2), x, *affine), sample.attrs, low=0.1, high=1.5)


for _forward in NORMALIZATIONS:
    add_definition(NormGrad(_forward))
    add_definition(NormAffineGrad(_forward))
