"""Chains of permute, slice and reshape as one strided read; made by rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.layout import strided_copy
from engine.lower import Lowering
from engine.op import Array, Attrs, Sample, register, require
from engine.ops.shape import Move


@register
class Strided(Move):
    """y[i, j, ...] = x[start + i strides[0] + j strides[1] + ...], x seen as a flat array."""

    name = "strided"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        self.check(inputs)
        shape, strides, start = attrs["shape"], attrs["strides"], attrs["start"]
        good = len(shape) == len(strides) and start >= 0 and min(shape, default=1) >= 1
        good = good and all(stride >= 0 for stride in strides)
        last = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=False))
        rule = f"shape {shape}, strides {strides}, start {start} do not fit"
        require(good and last < inputs[0].size, self.name, rule, *inputs)
        return TensorType(tuple(shape))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        flat = np.ascontiguousarray(inputs[0]).reshape(-1)[attrs["start"] :]
        strides = [stride * flat.itemsize for stride in attrs["strides"]]
        return np.lib.stride_tricks.as_strided(flat, attrs["shape"], strides).copy()

    def lower(self, node: Node, to: Lowering) -> None:
        strides, start = node.attrs["strides"], node.attrs["start"]
        to.dispatch(strided_copy(self.name, node.shape, strides, start), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        yield Sample(((7,),), {"shape": (1,), "strides": (0,), "start": 6})
        yield Sample(((5, 7),), {"shape": (7, 4), "strides": (1, 7), "start": 7})
        yield Sample(((5, 24),), {"shape": (2, 5, 4), "strides": (4, 24, 1), "start": 8})
