"""Convolution over NHWC images and its two adjoints, each a matrix product through windows.

The result is linear in both operands, so each of the three ops has the other two as its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import conv as kernels
from engine.kernels.layout import Window
from engine.kernels.matmul import MatmulShape
from engine.kernels.operands import is_wide
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.epilogue import (
    FACTORS,
    apply_epilogue,
    check_epilogue,
    emit_product,
    epilogue_of,
    through_epilogue,
)
from engine.ops.factors import Factors, ProductOp
from engine.ops.matmul import linear
from engine.ops.pointwise import add
from engine.ops.shape import reshape
from engine.ops.window import (
    WINDOW_ATTRS,
    Pair,
    checked_window,
    cropped,
    padded,
    taps,
    window_attrs,
    window_of,
)
from engine.specialize import MatmulChoice, choose_matmul


def _choose(shape: MatmulShape, to: Lowering) -> MatmulChoice:
    return choose_matmul(shape.batch, shape.m, shape.n, shape.k, to.facts)


def _window_attrs_of(node: Node) -> dict[str, tuple[int, int]]:
    return {key: node.attrs[key] for key in WINDOW_ATTRS}


def _require_upstream(op: str, w: Window, g: TensorType, *inputs: TensorType) -> None:
    good = len(g.shape) == 4 and g.shape[:3] == (w.images, *w.out) and g.dtype == "f32"
    require(good, op, f"upstream must be f32[{w.images}, {w.out[0]}, {w.out[1]}, out]", *inputs)


def _require_weight(op: str, w: Window, weight: TensorType, *inputs: TensorType) -> None:
    good = len(weight.shape) == 2 and weight.shape[1] == w.taps and weight.dtype == "f32"
    require(good, op, f"weight must be f32[out, {w.taps}] for {w.channels} channels", *inputs)


def _by_tap(weight: Array, w: Window) -> Array:
    return weight.reshape(weight.shape[0], *w.kernel, w.channels)


@register
class Conv2d(ProductOp):
    """y[n, oh, ow, out] = windows of x[n, h, w, c] * weight[out, kh * kw * c], then the epilogue.

    Taps are ordered (ky, kx, c); outside the image is zero. See engine.ops.epilogue for the rest.
    """

    name = "conv2d"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) >= 2, self.name, "takes x and weight", *inputs)
        w = checked_window(self.name, inputs[0], attrs)
        _require_weight(self.name, w, inputs[1], *inputs)
        out = inputs[1].shape[0]
        result = TensorType((w.images, *w.out, out))
        return check_epilogue(self.name, result, inputs, attrs)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(inputs[0].shape, attrs)
        images, weight = padded(inputs[0], w), _by_tap(inputs[1], w)
        y = np.zeros((w.images, *w.out, weight.shape[0]))
        for ky, kx, rows, columns in taps(w):
            y += images[:, rows, columns] @ weight[:, ky, kx].T
        return apply_epilogue(y, inputs, attrs)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x, weight = node.inputs[:2]
        attrs = _window_attrs_of(node)
        g, others = through_epilogue(node, upstream)
        return [_input_grad(g, weight, x.shape, attrs), _weight_grad(g, x, attrs), *others]

    def factors(
        self, rows: TensorType, others: Sequence[Node], attrs: Attrs, to: Lowering
    ) -> Factors:
        weight, *operands = others
        w, out = window_of(rows.shape, attrs), weight.shape[0]
        shape = kernels.forward_shape(w, out)
        epilogue = epilogue_of(operands, (w.images, *w.out, out), attrs)
        access = kernels.forward_access(w, shape, to.stored(weight))
        return Factors(shape, weight, epilogue, operands, access)

    def choose(self, shape: MatmulShape, to: Lowering) -> MatmulChoice:
        return _choose(shape, to)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        return (1,) if is_wide(inputs[1].shape[1]) else ()

    def samples(self) -> Iterator[Sample]:
        for image, out, attrs in CONVOLUTIONS:
            w = window_of(image, attrs)
            yield Sample((image, (out, w.taps)), {**attrs, "epilogue": ()})
        image, out, attrs = CONVOLUTIONS[1]
        weight = (out, window_of(image, attrs).taps)
        steps: Any = (("add", {}, (0, 1)), ("gelu", {}, (2,)))
        yield Sample((image, weight, (out,)), {**attrs, "epilogue": steps})
        # Deep enough for split-K, with its epilogue in the second launch.
        attrs = window_attrs(3, 1, 1)
        steps = (("mul", {}, (0, 1)), ("silu", {}, (3,)), ("add", {}, (2, 4)))
        shapes = ((1, 4, 3, 60), (6, 540), (6,), (1, 4, 3, 6))
        yield Sample(shapes, {**attrs, "epilogue": steps})


@register
class Conv2dInputGrad(Op):
    """dx[n, h, w, c] of shape `image` from g[n, oh, ow, out] and weight[out, kh * kw * c].

    As an op of its own this is the transposed convolution of g. It takes an epilogue.
    """

    name = "conv2d_input_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) >= 2, self.name, "takes upstream and weight", *inputs)
        image = TensorType(tuple(attrs["image"]))
        w = checked_window(self.name, image, attrs)
        g, weight = inputs[:2]
        _require_upstream(self.name, w, g, *inputs)
        _require_weight(self.name, w, weight, *inputs)
        agree = g.shape[3] == weight.shape[0]
        require(agree, self.name, "upstream and weight differ in out channels", *inputs)
        return check_epilogue(self.name, image, inputs, attrs)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(attrs["image"], attrs)
        g, weight = inputs[0], _by_tap(inputs[1], w)
        images = padded(np.zeros(attrs["image"]), w)
        for ky, kx, rows, columns in taps(w):
            images[:, rows, columns] += g @ weight[:, ky, kx]
        return apply_epilogue(cropped(images, w), inputs, attrs)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        g, weight = node.inputs[:2]
        attrs = _window_attrs_of(node)
        upstream, others = through_epilogue(node, upstream)
        return [_convolved(upstream, weight, attrs), _weight_grad(g, upstream, attrs), *others]

    def lower(self, node: Node, to: Lowering) -> None:
        w, out = window_of(node.attrs["image"], node.attrs), node.inputs[0].shape[3]
        shape = kernels.input_grad_shape(w, out)
        # As many of the largest phase as all have work for; several products are never split.
        busy = max(min(2, shape.batch), ceil(prod(w.kernel) * out / shape.k))
        choice = _choose(replace(shape, batch=busy), to)
        epilogue = epilogue_of(node.inputs[FACTORS:], node.shape, node.attrs)
        stored = to.stored(node.inputs[1])
        made = kernels.input_grad(w, out, shape, choice, epilogue, stored)
        emit_product(to, made, shape, choice, node.inputs, node, epilogue)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        return (1,) if is_wide(attrs["image"][3]) else ()

    def samples(self) -> Iterator[Sample]:
        for image, out, attrs in CONVOLUTIONS:
            w = window_of(image, attrs)
            g, weight = (w.images, *w.out, out), (out, w.taps)
            yield Sample((g, weight), {**attrs, "image": image, "epilogue": ()})
            steps: Any = (("mul", {}, (0, 1)), ("tanh", {}, (3,)), ("add", {}, (2, 4)))
            more = (image, image[-1:])
            yield Sample((g, weight, *more), {**attrs, "image": image, "epilogue": steps})


@register
class Conv2dWeightGrad(Op):
    """dweight[out, kh * kw * c] from g[n, oh, ow, out] and x[n, h, w, c]."""

    name = "conv2d_weight_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 2, self.name, "takes upstream and x", *inputs)
        w = checked_window(self.name, inputs[1], attrs)
        _require_upstream(self.name, w, inputs[0], *inputs)
        return TensorType((inputs[0].shape[3], w.taps))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(inputs[1].shape, attrs)
        g, images = inputs[0].reshape(w.positions, -1), padded(inputs[1], w)
        dweight = np.zeros((g.shape[1], *w.kernel, w.channels))
        for ky, kx, rows, columns in taps(w):
            dweight[:, ky, kx] = g.T @ images[:, rows, columns].reshape(w.positions, -1)
        return dweight.reshape(g.shape[1], w.taps)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        g, x = node.inputs
        attrs = _window_attrs_of(node)
        return [_convolved(x, upstream, attrs), _input_grad(g, upstream, x.shape, attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        w, out = window_of(node.inputs[1].shape, node.attrs), node.inputs[0].shape[3]
        shape = kernels.weight_grad_shape(w, out)
        choice = _choose(shape, to)
        made = kernels.weight_grad(w, shape, choice)
        emit_product(to, made, shape, choice, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, out, attrs in CONVOLUTIONS:
            w = window_of(image, attrs)
            yield Sample(((w.images, *w.out, out), image), attrs)
        # Enough positions for split-K.
        yield Sample(((2, 17, 19, 5), (2, 17, 19, 4)), window_attrs(3, 1, 1))


CONVOLUTIONS: tuple[tuple[tuple[int, ...], int, dict[str, tuple[int, int]]], ...] = (
    ((1, 1, 1, 1), 1, window_attrs(1, 1, 0)),
    ((1, 5, 7, 3), 5, window_attrs(3, 1, 1)),
    ((2, 7, 9, 4), 8, window_attrs(3, 2, 1)),
    ((1, 11, 9, 3), 4, window_attrs(7, 2, 3)),
    ((2, 6, 8, 4), 7, window_attrs(2, 2, 0)),
    ((1, 5, 4, 8), 3, window_attrs(1, 2, 0)),
    ((1, 1, 13, 5), 4, window_attrs((1, 3), (1, 2), (0, 1))),
    ((1, 7, 5, 2), 3, window_attrs((3, 2), (2, 3), (2, 0))),
    # Pixels right of and below the last window have no gradient.
    ((1, 8, 9, 2), 2, window_attrs(2, (5, 3), 0)),
)
"""Image, out channels, window: primes, odd extents under stride 2, kernels beside strides."""


def _convolved(x: Node, weight: Node, attrs: Attrs) -> Node:
    return x.graph.add("conv2d", [x, weight], **attrs, epilogue=())


def _input_grad(g: Node, weight: Node, image: Sequence[int], attrs: Attrs) -> Node:
    return g.graph.add("conv2d_input_grad", [g, weight], **attrs, image=tuple(image), epilogue=())


def _weight_grad(g: Node, x: Node, attrs: Attrs) -> Node:
    return g.graph.add("conv2d_weight_grad", [g, x], **attrs)


def conv2d(
    x: Node,
    weight: Node,
    bias: Node | None,
    kernel: Pair,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
) -> Node:
    """Convolution of x [n, h, w, c] with weight [out, kh * kw * c] -> [n, oh, ow, out].

    Kernel, stride and padding are in pixels, one number or (y, x). Convolution with a 1x1 kernel
    at every pixel is a plain matrix product.
    """
    attrs = window_attrs(kernel, stride, padding)
    plain = attrs == window_attrs(1, 1, 0) and len(x.shape) == 4
    if plain and x.shape[-1:] == weight.shape[1:]:
        return linear(x, weight, bias)
    y = _convolved(x, weight, attrs)
    return y if bias is None else add(y, bias)


def conv1d(
    x: Node, weight: Node, bias: Node | None, kernel: int, *, stride: int = 1, padding: int = 0
) -> Node:
    """Convolution of x [n, t, c] along t with weight [out, kernel * c] -> [n, ot, out]."""
    require(len(x.shape) == 3, "conv1d", "takes x [n, t, c]", x.type)
    n, t, c = x.shape
    flat = reshape(x, (n, 1, t, c))
    y = conv2d(flat, weight, bias, (1, kernel), stride=(1, stride), padding=(0, padding))
    return reshape(y, (n, *y.shape[2:]))
