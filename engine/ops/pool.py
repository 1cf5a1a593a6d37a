"""Pooling over NHWC images: maximum, average and its adjoint, global average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import pool as kernels
from engine.kernels.layout import Window
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.reduce import reduce_mean
from engine.ops.window import (
    Pair,
    checked_window,
    cropped,
    padded,
    pair,
    taps,
    window_attrs,
    window_of,
)

DIVISORS = ("kernel", "inside", "one")


def _pool_window(op: str, images: TensorType, attrs: Attrs) -> Window:
    w = checked_window(op, images, attrs)
    # Otherwise a window could lie in the padding alone and have no largest element.
    small = all(2 * p <= k for p, k in zip(w.padding, w.kernel, strict=True))
    require(small, op, f"padding {w.padding} exceeds half of the kernel {w.kernel}", images)
    return w


def _pooled_type(w: Window) -> TensorType:
    return TensorType((w.images, *w.out, w.channels))


@register
class MaxPool2d(Op):
    """y[n, oh, ow, c] = the largest element of each window of x[n, h, w, c]."""

    name = "max_pool2d"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 1, self.name, "takes one operand", *inputs)
        return _pooled_type(_pool_window(self.name, inputs[0], attrs))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(inputs[0].shape, attrs)
        images = padded(inputs[0], w, -np.inf)
        y = np.full(_pooled_type(w).shape, -np.inf)
        for _, _, rows, columns in taps(w):
            y = np.maximum(y, images[:, rows, columns])
        return y

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x = node.inputs[0]
        return [node.graph.add("max_pool2d_grad", [x, node, upstream], **node.attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = kernels.max_pool(window_of(node.inputs[0].shape, node.attrs))
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in POOLS:
            # Below zero, so that padding taken for zeros would win.
            yield Sample((image,), attrs, low=-3.0, high=-0.1)


@register
class MaxPool2dGrad(Op):
    """dx from x[n, h, w, c], y = max_pool2d(x) and the upstream gradient of y.

    Where several elements of a window are largest, the first in the order (y, x) gets it all.
    """

    name = "max_pool2d_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 3, self.name, "takes x, y and upstream", *inputs)
        pooled = _pooled_type(_pool_window(self.name, inputs[0], attrs))
        good = list(inputs[1:]) == [pooled, pooled]
        require(good, self.name, f"y and upstream must be {pooled}", *inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, y, upstream = inputs
        w = window_of(x.shape, attrs)
        images = padded(x, w, -np.inf)
        dx = padded(np.zeros_like(x), w)
        taken = np.zeros(y.shape, bool)
        for _, _, rows, columns in taps(w):
            won = (images[:, rows, columns] == y) & ~taken
            dx[:, rows, columns] += np.where(won, upstream, 0)
            taken |= won
        return cropped(dx, w)

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = kernels.max_pool_grad(window_of(node.inputs[0].shape, node.attrs))
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in POOLS:
            pooled = _pooled_type(window_of(image, attrs)).shape
            yield Sample((image, pooled, pooled), attrs)


def _weights(w: Window, divisor: str) -> Array:
    """What one element of each window counts, [oh, ow, 1]."""
    if divisor == "one":
        return np.ones((*w.out, 1))
    if divisor == "kernel":
        return np.full((*w.out, 1), 1 / (w.kernel[0] * w.kernel[1]))
    inside = padded(np.ones((1, w.height, w.width, 1)), w)
    counts = sum(inside[:, rows, columns] for _, _, rows, columns in taps(w))
    return np.asarray(1 / counts)[0]


def _check_divisor(op: str, attrs: Attrs, images: TensorType) -> None:
    known = attrs["divisor"] in DIVISORS
    require(known, op, f"divisor {attrs['divisor']!r} is not one of {', '.join(DIVISORS)}", images)


@register
class AvgPool2d(Op):
    """y[n, oh, ow, c] = the sum of each window of x[n, h, w, c], zeros outside, over a divisor.

    Attribute `divisor`: "kernel", its size; "inside", the elements that lie in the image; "one".
    """

    name = "avg_pool2d"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 1, self.name, "takes one operand", *inputs)
        _check_divisor(self.name, attrs, inputs[0])
        return _pooled_type(_pool_window(self.name, inputs[0], attrs))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(inputs[0].shape, attrs)
        images = padded(inputs[0], w)
        y = np.zeros(_pooled_type(w).shape)
        for _, _, rows, columns in taps(w):
            y += images[:, rows, columns]
        return y * _weights(w, attrs["divisor"])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {**node.attrs, "image": node.inputs[0].shape}
        return [node.graph.add("avg_unpool2d", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        w = window_of(node.inputs[0].shape, node.attrs)
        to.dispatch(kernels.avg_pool(w, node.attrs["divisor"]), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in POOLS:
            for divisor in DIVISORS:
                yield Sample((image,), {**attrs, "divisor": divisor})


@register
class AvgUnpool2d(Op):
    """The adjoint of avg_pool2d: each x[n, oh, ow, c] over its divisor is added to its window.

    The result has shape `image`. With divisor "one" and windows side by side this is nearest
    upsampling.
    """

    name = "avg_unpool2d"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        images = TensorType(tuple(attrs["image"]))
        _check_divisor(self.name, attrs, images)
        pooled = _pooled_type(_pool_window(self.name, images, attrs))
        require(list(inputs) == [pooled], self.name, f"takes {pooled}", *inputs)
        return images

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(attrs["image"], attrs)
        shares = inputs[0] * _weights(w, attrs["divisor"])
        images = padded(np.zeros(attrs["image"]), w)
        for _, _, rows, columns in taps(w):
            images[:, rows, columns] += shares
        return cropped(images, w)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {key: value for key, value in node.attrs.items() if key != "image"}
        return [node.graph.add("avg_pool2d", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        w = window_of(node.attrs["image"], node.attrs)
        to.dispatch(kernels.avg_unpool(w, node.attrs["divisor"]), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in POOLS:
            pooled = _pooled_type(window_of(image, attrs)).shape
            for divisor in DIVISORS:
                yield Sample((pooled,), {**attrs, "divisor": divisor, "image": image})


POOLS: tuple[tuple[tuple[int, ...], dict[str, tuple[int, int]]], ...] = (
    ((1, 1, 1, 1), window_attrs(1, 1, 0)),
    ((2, 5, 7, 3), window_attrs(3, 1, 1)),
    ((1, 9, 7, 4), window_attrs(3, 2, 1)),
    ((1, 8, 6, 5), window_attrs(2, 2, 0)),
    ((1, 11, 5, 4), window_attrs((5, 2), (3, 1), (2, 1))),
    # Strides beyond the kernel skip pixels.
    ((1, 7, 9, 2), window_attrs((1, 2), (2, 4), (0, 1))),
)


def max_pool2d(x: Node, kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0) -> Node:
    """The largest element of each window of x [n, h, w, c]; the stride defaults to the kernel.

    Padding, at most half of the kernel, never wins. Of equal elements the first, in the order
    (y, x), gets the gradient.
    """
    attrs = window_attrs(kernel, kernel if stride is None else stride, padding)
    return x.graph.add("max_pool2d", [x], **attrs)


def avg_pool2d(
    x: Node,
    kernel: Pair,
    *,
    stride: Pair | None = None,
    padding: Pair = 0,
    count_include_pad: bool = True,
) -> Node:
    """The mean of each window of x [n, h, w, c]; the stride defaults to the kernel.

    `count_include_pad`, PyTorch's default, counts padding as zeros; without it a window's sum is
    divided by the number of its pixels inside the image.
    """
    attrs = window_attrs(kernel, kernel if stride is None else stride, padding)
    divisor = "kernel" if count_include_pad else "inside"
    return x.graph.add("avg_pool2d", [x], **attrs, divisor=divisor)


def global_avg_pool(x: Node) -> Node:
    """The mean over all pixels, [n, h, w, c] -> [n, c]."""
    require(len(x.shape) == 4, "global_avg_pool", "takes images [n, h, w, c]", x.type)
    return reduce_mean(x, (1, 2))


def upsample_nearest(x: Node, factor: Pair) -> Node:
    """Each pixel of x [n, h, w, c] repeated `factor` times: [n, h * fy, w * fx, c]."""
    fy, fx = pair(factor)
    good = len(x.shape) == 4 and min(fy, fx) >= 1
    require(good, "upsample_nearest", f"factor {(fy, fx)}, images [n, h, w, c]", x.type)
    n, h, w, c = x.shape
    attrs = window_attrs((fy, fx), (fy, fx), 0)
    return x.graph.add("avg_unpool2d", [x], **attrs, divisor="one", image=(n, h * fy, w * fx, c))
