"""Windows over NHWC images, and their contents as a matrix: `unfold` and its adjoint `fold`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import layout
from engine.kernels.layout import Window
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require

Pair = int | tuple[int, int]
"""A number of pixels for both axes, or (y, x)."""


def pair(value: Pair) -> tuple[int, int]:
    """The same for both axes, unless two are given."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def window_attrs(kernel: Pair, stride: Pair, padding: Pair) -> dict[str, tuple[int, int]]:
    """The attributes that every op with windows has."""
    return {"kernel": pair(kernel), "stride": pair(stride), "padding": pair(padding)}


WINDOW_ATTRS = ("kernel", "stride", "padding")


def window_of(image: Sequence[int], attrs: Attrs) -> Window:
    """The window that an op's attributes describe over images [n, h, w, c]."""
    images, height, width, channels = image
    sizes = (attrs["kernel"], attrs["stride"], attrs["padding"])
    return Window(images, height, width, channels, *sizes)


def checked_window(op: str, images: TensorType, attrs: Attrs) -> Window:
    """`window_of` f32 images; GraphError unless the window is valid and fits at least once."""
    good = len(images.shape) == 4 and images.dtype == "f32"
    require(good, op, "takes f32 images [n, h, w, c]", images)
    w = window_of(images.shape, attrs)
    valid = min(*w.kernel, *w.stride) >= 1 and min(w.padding) >= 0
    fits = all(
        size + 2 * p >= k
        for size, k, p in zip((w.height, w.width), w.kernel, w.padding, strict=True)
    )
    require(valid and fits, op, f"window {dict(attrs)} fails", images)
    return w


def padded(images: Array, w: Window, value: float = 0.0) -> Array:
    """Images with the window's padding around them."""
    (py, px) = w.padding
    return np.pad(images, ((0, 0), (py, py), (px, px), (0, 0)), constant_values=value)


def cropped(images: Array, w: Window) -> Array:
    """Padded images without their padding."""
    (py, px) = w.padding
    return images[:, py : py + w.height, px : px + w.width]


def taps(w: Window) -> Iterator[tuple[int, int, slice, slice]]:
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
        require(len(inputs) == 1, self.name, "takes one operand", *inputs)
        w = checked_window(self.name, inputs[0], attrs)
        return TensorType((w.positions, w.taps))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(inputs[0].shape, attrs)
        images = padded(inputs[0], w)
        y = np.zeros((w.images, *w.out, *w.kernel, w.channels))
        for ky, kx, rows, columns in taps(w):
            y[:, :, :, ky, kx] = images[:, rows, columns]
        return y.reshape(w.positions, w.taps)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {**node.attrs, "image": node.inputs[0].shape}
        return [node.graph.add("fold", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = layout.unfold(window_of(node.inputs[0].shape, node.attrs))
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in WINDOWS:
            yield Sample((image,), attrs)


@register
class Fold(Op):
    """The adjoint of unfold: window contents are summed back into x of shape `image`."""

    name = "fold"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        images = TensorType(tuple(attrs["image"]))
        w = checked_window(self.name, images, attrs)
        expected = TensorType((w.positions, w.taps))
        require(list(inputs) == [expected], self.name, f"takes {expected}", *inputs)
        return images

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        w = window_of(attrs["image"], attrs)
        windows = inputs[0].reshape(w.images, *w.out, *w.kernel, w.channels)
        images = padded(np.zeros(attrs["image"]), w)
        for ky, kx, rows, columns in taps(w):
            images[:, rows, columns] += windows[:, :, :, ky, kx]
        return cropped(images, w)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {key: node.attrs[key] for key in WINDOW_ATTRS}
        return [node.graph.add("unfold", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = layout.fold(window_of(node.attrs["image"], node.attrs))
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, attrs in WINDOWS:
            w = window_of(image, attrs)
            yield Sample(((w.positions, w.taps),), {**attrs, "image": image})


WINDOWS: tuple[tuple[tuple[int, ...], dict[str, tuple[int, int]]], ...] = (
    ((1, 1, 1, 1), window_attrs(1, 1, 0)),
    ((1, 5, 7, 3), window_attrs(3, 1, 1)),
    ((2, 6, 5, 4), window_attrs(3, 2, 1)),
    ((1, 8, 12, 3), window_attrs(4, 4, 0)),
    ((1, 7, 5, 2), window_attrs((3, 1), (2, 1), (1, 0))),
)


def unfold(x: Node, kernel: Pair, *, stride: Pair = 1, padding: Pair = 0) -> Node:
    """Window contents of x [n, h, w, c] as rows [n * oh * ow, kh * kw * c]."""
    return x.graph.add("unfold", [x], **window_attrs(kernel, stride, padding))


def fold(
    rows: Node, image: Sequence[int], kernel: Pair, *, stride: Pair = 1, padding: Pair = 0
) -> Node:
    """The adjoint of `unfold`: rows [n * oh * ow, kh * kw * c] summed into x of shape `image`."""
    attrs = window_attrs(kernel, stride, padding)
    return rows.graph.add("fold", [rows], image=tuple(image), **attrs)
