"""Scaled dot-product attention: self, cross, causal and grouped-query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import attention as kernels
from engine.kernels.attention import AttentionShape
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.attention_gradients import lower_gradients
from engine.ops.extra import extra
from engine.ops.stream import lower_stream, sum_lanes

MAX_WIDTH = 128
"""Elements per head; beyond, the accumulators of a row do not fit in registers."""


def _shape(inputs: Sequence[TensorType], attrs: Attrs) -> AttentionShape:
    (heads, queries, width), (kv_heads, keys, _) = inputs[0].shape, inputs[1].shape
    return AttentionShape(
        heads, kv_heads, queries, keys, width, bool(attrs["causal"]), attrs["scale"]
    )


def _check(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> None:
    """Whether q, k and v fit together."""
    require(all(t.dtype == "f32" for t in inputs), op, "operands must be f32", *inputs)
    q, k, v = (t.shape for t in inputs[:3])
    good = len(q) == len(k) == 3 and k == v and q[2] == k[2] and q[0] % k[0] == 0
    rule = "needs q [heads, queries, width], k and v [kv_heads, keys, width], heads % kv_heads == 0"
    require(good, op, rule, *inputs[:3])
    require(q[2] <= MAX_WIDTH, op, f"width must be at most {MAX_WIDTH}", *inputs[:3])
    # Otherwise the first queries would see no key at all.
    seen = not attrs["causal"] or k[1] >= q[1]
    require(seen, op, "causal attention needs at least as many keys as queries", *inputs[:3])


def _scores(q: Array, k: Array, attrs: Attrs) -> Array:
    """Scaled scores [heads, queries, keys]; -inf where a query does not see a key."""
    scores = attrs["scale"] * (q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(1, 2))
    if not attrs["causal"]:
        return scores
    queries, keys = scores.shape[1:]
    return np.where(np.tri(queries, keys, keys - queries, dtype=bool), scores, -np.inf)


@register
class Attention(Op):
    """y = softmax(scale q k^T) v per head; q [heads, queries, width], k, v [kv_heads, keys, width].

    Query head h reads key head h // (heads / kv_heads). With `causal`, query i sees keys up to
    i + keys - queries. Further result 0: the log-sum-exp of the scores [heads, queries].
    """

    name = "attention"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 3, self.name, "takes q, k and v", *inputs)
        _check(self.name, inputs, attrs)
        return inputs[0]

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape[:2]),)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        q, k, v = inputs
        scores = _scores(q, k, attrs)
        high = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - high)
        total = weights.sum(axis=-1, keepdims=True)
        y = weights / total @ np.repeat(v, len(q) // len(v), axis=0)
        return y, (high + np.log(total))[..., 0]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        operands = [*node.inputs, node, extra(node, 0), upstream]
        grad_q = node.graph.add("attention_grad", operands, **node.attrs)
        return [grad_q, extra(grad_q, 0), extra(grad_q, 1)]

    def lower(self, node: Node, to: Lowering) -> None:
        shape = _shape([value.type for value in node.inputs], node.attrs)
        lse = to.extra(node, 0)
        writes = [node] if lse is None else [node, lse]
        lower_stream(to, kernels.attention(shape, lse=lse is not None), node.inputs, *writes)

    def samples(self) -> Iterator[Sample]:
        for shapes, causal in CASES:
            yield Sample((*shapes, shapes[1]), {"causal": causal, "scale": shapes[0][2] ** -0.5})


@register
class AttentionGrad(Op):
    """Gradients of attention from q, k, v, its results y and lse, and upstream g.

    The result is dq; further results are dk and dv, summed over the query heads of a key head.
    """

    name = "attention_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 6, self.name, "takes q, k, v, y, lse and g", *inputs)
        _check(self.name, inputs, attrs)
        q, _, _, y, lse, g = (t.shape for t in inputs)
        require(q == y == g and lse == q[:2], self.name, "y, lse and g must fit q", *inputs)
        return inputs[0]

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        return (inputs[1], inputs[2])

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        q, k, v, y, lse, g = inputs
        group = len(q) // len(k)
        p = np.exp(_scores(q, k, attrs) - lse[..., None])
        through = g @ np.repeat(v, group, axis=0).swapaxes(1, 2)
        ds = attrs["scale"] * p * (through - (g * y).sum(axis=-1, keepdims=True))
        dk, dv = ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ g
        dk, dv = (d.reshape(len(k), group, *k.shape[1:]).sum(axis=1) for d in (dk, dv))
        return ds @ np.repeat(k, group, axis=0), dk, dv

    def lower(self, node: Node, to: Lowering) -> None:
        q, k, v, y, lse, g = node.inputs
        s = _shape([value.type for value in node.inputs], node.attrs)
        delta = to.scratch((s.heads, s.queries))
        row_sums = kernels.delta(s.heads * s.queries, s.width, sum_lanes(s.width, to.facts))
        to.dispatch(row_sums, [g, y], delta)
        lower_gradients(to, s, [q, k, v, g, lse, delta], node)

    def samples(self) -> Iterator[Sample]:
        for (q, k), causal in CASES:
            attrs = {"causal": causal, "scale": q[2] ** -0.5}
            yield Sample((q, k, k, q, q[:2], q), attrs)


CASES: tuple[tuple[tuple[tuple[int, int, int], tuple[int, int, int]], bool], ...] = (
    (((1, 1, 2), (1, 3, 2)), True),
    (((2, 5, 3), (2, 7, 3)), False),
    (((3, 13, 8), (1, 11, 8)), False),
    (((2, 3, 1), (2, 37, 1)), True),
    (((4, 35, 20), (2, 35, 20)), True),
    (((2, 6, 80), (1, 41, 80)), False),
)
"""(q, k) and causal: one query, odd widths, grouped heads, more keys than queries."""


def attention(
    q: Node, k: Node, v: Node, *, causal: bool = False, scale: float | None = None
) -> Node:
    """softmax(scale q k^T) v [heads, queries, width] without a matrix of scores in memory.

    q [heads, queries, width], k and v [kv_heads, keys, width], width at most 128; query head h
    reads key head h // (heads / kv_heads), so a batch may be folded into the heads, outermost.
    `scale` is 1 / sqrt(width) unless given. With `causal`, query i sees keys up to
    i + keys - queries. The log-sum-exp [heads, queries] of the scores is `extra(result, 0)`.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return q.graph.add("attention", [q, k, v], causal=causal, scale=scale)
