"""Gradients of the normalisations, from the statistics that the forward op keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.graph import Node, TensorType
from engine.kernels import norm as kernels
from engine.kernels.norm import Groups
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, add_definition, require
from engine.ops.norm import NORMALIZATIONS, Normalization, cut_of, grouped
from engine.ops.reduce import lower_sum
from engine.ops.unary import logistic


class NormGrad(Op):
    """Dx from x, the statistics, upstream, the weight and (with SiLU) the bias, as given."""

    def __init__(self, forward: Normalization) -> None:
        self.forward, self.name = forward, f"{forward.name}_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        _check_gradient(self.forward, self.name, inputs, attrs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        g, hat, through, inv = _backward(self.forward, inputs, attrs)
        if len(inputs) > 3:
            through = through * _grouped_channels(inputs[3], g)
        slope = (through * hat).mean(axis=(1, 3), keepdims=True)
        centre = through.mean(axis=(1, 3), keepdims=True) * g.centred
        return (inv * (through - centre - hat * slope)).reshape(inputs[0].shape)

    def lower(self, node: Node, to: Lowering) -> None:
        g = self.forward.with_affine(node.inputs[0].type, node.attrs, len(node.inputs) - 3)
        cut = cut_of(g, to)
        parts = []
        if cut.slices > 1:
            parts = [to.scratch((g.rows, cut.slices, 2))]
            to.dispatch(kernels.gradient_sums(g, cut), node.inputs, *parts)
        to.dispatch(kernels.normalize_grad(self.name, g, cut), [*node.inputs, *parts], node)

    def samples(self) -> Iterator[Sample]:
        for sample in self.forward.samples():
            silu = sample.attrs.get("silu", False)
            yield _gradient_sample(self.forward, sample, sample.shapes[1 : 3 if silu else 2])


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
        slices = kernels.affine_grad_parts(g)
        kernel = kernels.affine_grad(g, bias is not None)
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
