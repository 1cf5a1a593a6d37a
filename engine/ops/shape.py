"""Ops that only move data: reshape and stop_gradient (views), permute, slice, pad, copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.layout import pad_axis, strided_copy
from engine.kernels.wgsl import strides_of
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require


class Move(Op):
    """Base of ops with f32 operands and no arithmetic."""

    operands = 1

    def check(self, inputs: Sequence[TensorType]) -> None:
        """Operand count and dtypes."""
        require(len(inputs) == self.operands, self.name, f"takes {self.operands} operand", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)


@register
class Reshape(Move):
    """The same elements, f32 or u32, under another shape; no data moves."""

    name = "reshape"
    view = True

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 1, self.name, "takes 1 operand", *inputs)
        result = TensorType(tuple(attrs["shape"]), inputs[0].dtype)
        good = result.size == inputs[0].size and min(result.shape, default=1) >= 1
        require(good, self.name, f"cannot give {result}", *inputs)
        return result

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0].reshape(attrs["shape"])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [reshape(upstream, node.inputs[0].shape)]

    def lower(self, node: Node, to: Lowering) -> None:
        raise AssertionError("views are not lowered")

    def samples(self) -> Iterator[Sample]:
        yield Sample(((3, 8),), {"shape": (2, 12)})


@register
class StopGradient(Move):
    """The same value, through which no gradient passes; no data moves."""

    name = "stop_gradient"
    view = True

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        self.check(inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [None]

    def lower(self, node: Node, to: Lowering) -> None:
        raise AssertionError("views are not lowered")

    def samples(self) -> Iterator[Sample]:
        yield Sample(((3, 5),))


@register
class Copy(Move):
    """The same value in storage of its own."""

    name = "copy"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        self.check(inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return inputs[0].copy()

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [upstream]

    def lower(self, node: Node, to: Lowering) -> None:
        to.dispatch(strided_copy("copy", (node.type.size,), (1,), 0), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ((1,), (5, 3), (4, 8)):
            yield Sample((shape,))


@register
class Permute(Move):
    """Axes in another order: y.shape[i] = x.shape[axes[i]]."""

    name = "permute"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        self.check(inputs)
        axes, shape = attrs["axes"], inputs[0].shape
        good = sorted(axes) == list(range(len(shape)))
        require(good, self.name, f"axes {axes} do not fit", *inputs)
        return TensorType(tuple(shape[axis] for axis in axes))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return np.transpose(inputs[0], attrs["axes"])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [permute(upstream, np.argsort(node.attrs["axes"]).tolist())]

    def lower(self, node: Node, to: Lowering) -> None:
        strides = strides_of(node.inputs[0].shape)
        moved = [strides[axis] for axis in node.attrs["axes"]]
        to.dispatch(strided_copy(self.name, node.shape, moved, 0), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1, 1),), {"axes": (1, 0)})
        yield Sample(((5, 7),), {"axes": (1, 0)})
        yield Sample(((3, 5, 8),), {"axes": (1, 0, 2)})
        yield Sample(((2, 3, 5, 7, 4),), {"axes": (0, 3, 1, 4, 2)})


@register
class Slice(Move):
    """x[start:stop] along one axis."""

    name = "slice"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        self.check(inputs)
        shape, axis = list(inputs[0].shape), attrs["axis"]
        start, stop = attrs["start"], attrs["stop"]
        good = 0 <= axis < len(shape) and 0 <= start < stop <= shape[axis]
        require(good, self.name, f"[{start}:{stop}] on axis {axis} does not fit", *inputs)
        shape[axis] = stop - start
        return TensorType(tuple(shape))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        index = (slice(None),) * attrs["axis"] + (slice(attrs["start"], attrs["stop"]),)
        return inputs[0][index]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        axis = node.attrs["axis"]
        after = node.inputs[0].shape[axis] - node.attrs["stop"]
        return [pad(upstream, axis, node.attrs["start"], after)]

    def lower(self, node: Node, to: Lowering) -> None:
        strides = strides_of(node.inputs[0].shape)
        offset = node.attrs["start"] * strides[node.attrs["axis"]]
        to.dispatch(strided_copy(self.name, node.shape, strides, offset), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((7,),), {"axis": 0, "start": 2, "stop": 5})
        yield Sample(((9, 8),), {"axis": 0, "start": 5, "stop": 9})
        yield Sample(((3, 11, 2),), {"axis": 1, "start": 0, "stop": 10})


@register
class Pad(Move):
    """Zeros before and after, along one axis."""

    name = "pad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        self.check(inputs)
        shape, axis = list(inputs[0].shape), attrs["axis"]
        good = 0 <= axis < len(shape) and attrs["before"] >= 0 and attrs["after"] >= 0
        require(good, self.name, f"axis {axis} or a negative width does not fit", *inputs)
        shape[axis] += attrs["before"] + attrs["after"]
        return TensorType(tuple(shape))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        widths = [(0, 0)] * inputs[0].ndim
        widths[attrs["axis"]] = (attrs["before"], attrs["after"])
        return np.pad(inputs[0], widths)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        axis, before = node.attrs["axis"], node.attrs["before"]
        return [take(upstream, axis, before, before + node.inputs[0].shape[axis])]

    def lower(self, node: Node, to: Lowering) -> None:
        shape, axis = node.inputs[0].shape, node.attrs["axis"]
        kernel = pad_axis(
            prod(shape[:axis]),
            shape[axis],
            prod(shape[axis + 1 :]),
            node.attrs["before"],
            node.attrs["after"],
        )
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1,),), {"axis": 0, "before": 0, "after": 3})
        yield Sample(((5, 7),), {"axis": 0, "before": 2, "after": 1})
        yield Sample(((3, 2, 4),), {"axis": 1, "before": 1, "after": 0})


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """The same elements under another shape; one extent may be -1."""
    known = prod(extent for extent in shape if extent != -1)
    full = tuple(x.type.size // known if extent == -1 else extent for extent in shape)
    return x if full == x.shape else x.graph.add("reshape", [x], shape=full)


def copy(x: Node) -> Node:
    """The same value in storage of its own."""
    return x.graph.add("copy", [x])


def permute(x: Node, axes: Sequence[int]) -> Node:
    """Axes in another order, as numpy.transpose."""
    return x.graph.add("permute", [x], axes=tuple(axes))


def take(x: Node, axis: int, start: int, stop: int) -> Node:
    """x[start:stop] along `axis`."""
    return x.graph.add("slice", [x], axis=axis, start=start, stop=stop)


def pad(x: Node, axis: int, before: int, after: int) -> Node:
    """Zeros around x along `axis`."""
    return x.graph.add("pad", [x], axis=axis, before=before, after=after)


def split(x: Node, axis: int, lengths: Sequence[int]) -> list[Node]:
    """Consecutive parts of x along `axis`; the lengths must add up to its extent."""
    fits = 0 <= axis < len(x.shape) and sum(lengths) == x.shape[axis]
    require(fits, "split", f"lengths {list(lengths)} do not fill axis {axis}", x.type)
    stops = accumulate(lengths)
    return [take(x, axis, stop - n, stop) for n, stop in zip(lengths, stops, strict=True)]


def stop_gradient(x: Node) -> Node:
    """The same value, through which no gradient passes."""
    return x.graph.add("stop_gradient", [x])
