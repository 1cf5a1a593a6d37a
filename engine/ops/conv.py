"""Windows over NHWC images and convolution as window extraction followed by a matrix product.

`unfold` and `fold` are each other's adjoint, so convolution needs no gradient rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import layout
from engine.kernels.layout import Window
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.matmul import linear
from engine.ops.shape import reshape


def _window(image: Sequence[int], attrs: Attrs) -> Window:
    images, height, width, channels = image
    sizes = (attrs["kernel"], attrs["stride"], attrs["padding"])
    return Window(images, height, width, channels, *sizes)


def _taps(w: Window) -> Iterator[tuple[int, int, slice, slice]]:
    """Each kernel tap with the slices of the padded image that it reads, for all positions."""
    oh, ow = w.out
    for ky in range(w.kernel[0]):
        for kx in range(w.kernel[1]):
            rows = slice(ky, ky + (oh - 1) * w.stride[0] + 1, w.stride[0])
            columns = slice(kx, kx + (ow - 1) * w.stride[1] + 1, w.stride[1])
            yield ky, kx, rows, columns


@register
class Unfold(Op):
    """x[n, h, w, c] -> [n * oh * ow, kh * kw * c], zeros outside the image."""

    name = "unfold"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == 1 and len(inputs[0].shape) == 4 and inputs[0].dtype == "f32"
        require(good, self.name, "takes one f32 image batch [n, h, w, c]", *inputs)
        w = _window(inputs[0].shape, attrs)
        positive = min(*w.kernel, *w.stride) >= 1 and min(w.padding) >= 0
        require(positive and min(w.out) >= 1, self.name, f"window {dict(attrs)} fails", *inputs)
        return TensorType((w.images * w.out[0] * w.out[1], w.kernel[0] * w.kernel[1] * w.channels))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = _window(inputs[0].shape, attrs)
        (py, px), (oh, ow) = w.padding, w.out
        padded = np.pad(inputs[0], ((0, 0), (py, py), (px, px), (0, 0)))
        y = np.zeros((w.images, oh, ow, *w.kernel, w.channels))
        for ky, kx, rows, columns in _taps(w):
            y[:, :, :, ky, kx] = padded[:, rows, columns]
        return y.reshape(w.images * oh * ow, -1)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {**node.attrs, "image": node.inputs[0].shape}
        return [node.graph.add("fold", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = layout.unfold(_window(node.inputs[0].shape, node.attrs))
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in WINDOWS:
            yield Sample((image,), attrs)


@register
class Fold(Op):
    """The adjoint of unfold: window contents are summed back into x of shape `image`."""

    name = "fold"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        w = _window(attrs["image"], attrs)
        expected = (w.images * w.out[0] * w.out[1], w.kernel[0] * w.kernel[1] * w.channels)
        good = len(inputs) == 1 and inputs[0].shape == expected and inputs[0].dtype == "f32"
        require(good, self.name, f"takes one f32 tensor {list(expected)}", *inputs)
        return TensorType(tuple(attrs["image"]))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = _window(attrs["image"], attrs)
        (py, px), (oh, ow) = w.padding, w.out
        windows = inputs[0].reshape(w.images, oh, ow, *w.kernel, w.channels)
        padded = np.zeros((w.images, w.height + 2 * py, w.width + 2 * px, w.channels))
        for ky, kx, rows, columns in _taps(w):
            padded[:, rows, columns] += windows[:, :, :, ky, kx]
        return padded[:, py : py + w.height, px : px + w.width]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {key: node.attrs[key] for key in ("kernel", "stride", "padding")}
        return [node.graph.add("unfold", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = layout.fold(_window(node.attrs["image"], node.attrs))
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in WINDOWS:
            w = _window(image, attrs)
            shape = (w.images * w.out[0] * w.out[1], w.kernel[0] * w.kernel[1] * w.channels)
            yield Sample((shape,), {**attrs, "image": image})


def _attrs(kernel: int, stride: int, padding: int) -> dict[str, tuple[int, int]]:
    return {
        "kernel": (kernel, kernel),
        "stride": (stride, stride),
        "padding": (padding, padding),
    }


WINDOWS: tuple[tuple[tuple[int, ...], dict[str, tuple[int, int]]], ...] = (
    ((1, 1, 1, 1), _attrs(1, 1, 0)),
    ((1, 5, 7, 3), _attrs(3, 1, 1)),
    ((2, 6, 5, 4), _attrs(3, 2, 1)),
    ((1, 8, 12, 3), _attrs(4, 4, 0)),
    ((1, 7, 5, 2), {"kernel": (3, 1), "stride": (2, 1), "padding": (1, 0)}),
)


def unfold(x: Node, kernel: int, *, stride: int = 1, padding: int = 0) -> Node:
    """Window contents of x [n, h, w, c] as rows [n * oh * ow, kernel * kernel * c]."""
    return x.graph.add("unfold", [x], **_attrs(kernel, stride, padding))


def conv2d(
    x: Node, weight: Node, bias: Node, kernel: int, *, stride: int = 1, padding: int = 0
) -> Node:
    """Convolution of x [n, h, w, c] with weight [out, kernel * kernel * c], giving NHWC."""
    n, h, w, _ = x.shape
    oh, ow = ((extent + 2 * padding - kernel) // stride + 1 for extent in (h, w))
    rows = linear(unfold(x, kernel, stride=stride, padding=padding), weight, bias)
    return reshape(rows, (n, oh, ow, weight.shape[0]))
