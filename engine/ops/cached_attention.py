"""Attention of the newest tokens over a cache that holds keys and values of all tokens so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import attention as kernels
from engine.kernels import decode_attention as decode
from engine.kernels.attention import AttentionShape
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.attention import MAX_WIDTH
from engine.ops.stream import lower_stream


@register
class CachedAttention(Op):
    """y = softmax(scale q k^T) v per head; q [heads, queries, width], k, v [kv_heads, keys, width].

    Query i sees keys up to i + position, a u32 [1] known at run time; what lies behind may be
    anything finite. Query head h reads key head h // (heads / kv_heads).
    """

    name = "cached_attention"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 4, self.name, "takes q, k, v and a position", *inputs)
        *real, position = inputs
        require(all(t.dtype == "f32" for t in real), self.name, "q, k and v must be f32", *real)
        q, k, v = (t.shape for t in real)
        good = len(q) == len(k) == 3 and k == v and q[2] == k[2] and q[0] % k[0] == 0
        rule = "needs q [heads, queries, width], k and v [kv_heads, keys, width]"
        require(good and k[1] >= q[1], self.name, f"{rule}, keys >= queries", *real)
        require(q[2] <= MAX_WIDTH, self.name, f"width must be at most {MAX_WIDTH}", *real)
        scalar = position == TensorType((1,), "u32")
        require(scalar, self.name, "the position must be u32 [1]", position)
        require(attrs["scale"] > 0, self.name, "the scale must be above 0", *real)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        q, k, v, position = inputs
        k, v = (np.repeat(x, len(q) // len(k), axis=0) for x in (k, v))
        queries, keys = q.shape[1], k.shape[1]
        seen = np.arange(keys) <= np.arange(queries)[:, None] + int(position[0])
        scores = np.where(seen, attrs["scale"] * (q @ k.swapaxes(1, 2)), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    def lower(self, node: Node, to: Lowering) -> None:
        q, k, _, position = node.inputs
        (heads, queries, width), (kv_heads, keys, _) = q.shape, k.shape
        shape = AttentionShape(
            heads, kv_heads, queries, keys, width, True, node.attrs["scale"], cached=True
        )
        if decode.suits(shape, to.facts):
            part = to.scratch((heads, decode.slices(shape), width))
            moments = to.scratch((heads, decode.slices(shape), 2))
            to.dispatch(decode.partial_attention(shape), node.inputs, part, moments)
            to.dispatch(decode.merged_attention(shape), [part, moments, position], node)
            return
        lower_stream(to, kernels.attention(shape, lse=False), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for q, k, below in (
            ((1, 1, 2), (1, 3, 2), 3),
            ((6, 1, 32), (2, 200, 32), 200),
            ((9, 1, 64), (3, 128, 64), 128),
            ((3, 5, 8), (1, 70, 8), 66),
            ((4, 37, 20), (2, 41, 20), 5),
        ):
            yield Sample((q, k, k, (1,)), {"scale": q[2] ** -0.5}, integers={3: below})


def cached_attention(
    q: Node, k: Node, v: Node, position: Node, *, scale: float | None = None
) -> Node:
    """softmax(scale q k^T) v [heads, queries, width] over keys up to i + position for query i.

    q [heads, queries, width], k and v [kv_heads, keys, width], width at most 128; position u32
    [1], that of the first query. `scale` is 1 / sqrt(width) unless given.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return q.graph.add("cached_attention", [q, k, v, position], scale=scale)
