"""Bilinear upsampling of NHWC images by whole factors, and its adjoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import pool as kernels
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.window import Pair, pair


def _upsampled(op: str, images: TensorType, attrs: Attrs) -> TensorType:
    good = len(images.shape) == 4 and images.dtype == "f32"
    require(good, op, "takes f32 images [n, h, w, c]", images)
    fy, fx = attrs["factor"]
    require(min(fy, fx) >= 1, op, f"factor {(fy, fx)} must be at least 1", images)
    n, h, w, c = images.shape
    return TensorType((n, h * fy, w * fx, c))


def _interpolation(size: int, factor: int) -> Array:
    """Weights [size * factor, size] of the pixels in each upsampled element."""
    centres = np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)
    return np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(size)))


@register
class UpsampleBilinear(Op):
    """y[n, h * fy, w * fx, c], linear between the centres of the pixels of x[n, h, w, c].

    Beyond the outermost centres the border is repeated (PyTorch's align_corners=False).
    """

    name = "upsample_bilinear"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 1, self.name, "takes one operand", *inputs)
        return _upsampled(self.name, inputs[0], attrs)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        sizes = zip(inputs[0].shape[1:3], attrs["factor"], strict=True)
        down, across = (_interpolation(size, factor) for size, factor in sizes)
        return np.einsum("yh,xw,nhwc->nyxc", down, across, inputs[0], optimize=True)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        attrs = {**node.attrs, "image": node.inputs[0].shape}
        return [node.graph.add("upsample_bilinear_grad", [upstream], **attrs)]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = kernels.upsample_bilinear(node.inputs[0].shape, node.attrs["factor"])
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, factor in UPSAMPLED:
            yield Sample((image,), {"factor": factor})


@register
class UpsampleBilinearGrad(Op):
    """The adjoint of upsample_bilinear, of shape `image`."""

    name = "upsample_bilinear_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        images = TensorType(tuple(attrs["image"]))
        large = _upsampled(self.name, images, attrs)
        require(list(inputs) == [large], self.name, f"takes {large}", *inputs)
        return images

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        sizes = zip(attrs["image"][1:3], attrs["factor"], strict=True)
        down, across = (_interpolation(size, factor) for size, factor in sizes)
        return np.einsum("yh,xw,nyxc->nhwc", down, across, inputs[0], optimize=True)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [upsample_bilinear(upstream, node.attrs["factor"])]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = kernels.upsample_bilinear_grad(node.attrs["image"], node.attrs["factor"])
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for image, factor in UPSAMPLED:
            n, h, w, c = image
            large = (n, h * factor[0], w * factor[1], c)
            yield Sample((large,), {"factor": factor, "image": image})


UPSAMPLED = (
    ((1, 1, 1, 1), (2, 2)),
    ((2, 3, 5, 4), (2, 2)),
    ((1, 2, 4, 3), (3, 1)),
    ((1, 1, 5, 8), (4, 5)),
)


def upsample_bilinear(x: Node, factor: Pair) -> Node:
    """X [n, h, w, c] enlarged by whole factors, one or (y, x): [n, h * fy, w * fx, c]."""
    return x.graph.add("upsample_bilinear", [x], factor=pair(factor))
