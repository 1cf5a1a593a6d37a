"""Conversion between f32 and u32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import DTYPES, Node, TensorType
from engine.kernels.layout import convert
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require

LARGEST = 4294967040.0
"""The largest f32 below 2^32."""


@register
class Cast(Op):
    """The same elements as `dtype`; to u32 they are cut to 0..LARGEST and rounded towards zero.

    No gradient passes.
    """

    name = "cast"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        known = attrs["dtype"] in DTYPES
        require(known, self.name, f"dtype must be {' or '.join(DTYPES)}", *inputs)
        good = len(inputs) == 1 and inputs[0].dtype != attrs["dtype"]
        require(good, self.name, f"takes one operand that is not {attrs['dtype']}", *inputs)
        return TensorType(inputs[0].shape, attrs["dtype"])

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        if attrs["dtype"] == "u32":
            return np.clip(inputs[0], 0, LARGEST).astype(np.uint32)
        return inputs[0].astype(np.float64)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [None]

    def lower(self, node: Node, to: Lowering) -> None:
        kernel = convert(node.type.size, node.inputs[0].type.dtype, node.type.dtype)
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for shape in ((1,), (5, 13)):
            yield Sample((shape,), {"dtype": "u32"}, low=-3, high=300)
            yield Sample((shape,), {"dtype": "f32"}, integers={0: 5000})


def cast(x: Node, dtype: str) -> Node:
    """X as "f32" or "u32" (rounded towards zero); x itself when it is of that type."""
    return x if x.type.dtype == dtype else x.graph.add("cast", [x], dtype=dtype)
