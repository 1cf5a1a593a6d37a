"""Rotary position embedding over precomputed angles: x * cos + rotate_half(x) * sin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require


def _kernel(lead: int, tokens: int, half: int, inverse: bool, angles: int | None) -> Kernel:
    """One invocation rotates one pair (j, j + half) of one token.

    `angles`: rows of cos and sin, if the first token's row is the operand `position`.
    """
    count = lead * tokens * half
    sign = "-" if inverse else ""
    token = f"(i / {half}u) % {tokens}u"
    if angles is not None:
        token = f"min(position[0] + {token}, {angles - 1}u)"
    body = f"""
    let j = i % {half}u;
    let token = {token};
    let base = (i / {half}u) * {2 * half}u + j;
    let c = cosine[token * {half}u + j];
    let s = {sign}sine[token * {half}u + j];
    let low = x[base];
    let high = x[base + {half}u];
    y[base] = low * c - high * s;
    y[base + {half}u] = high * c + low * s;"""
    reads = [("x", "f32"), ("cosine", "f32"), ("sine", "f32")]
    reads += [] if angles is None else [("position", "u32")]
    source = bindings(reads, [("y", "f32")]) + linear_main(count, 64, body)
    return Kernel("rope", source, linear_grid(count, 64), 6 * count)


@register
class Rope(Op):
    """Rotate x [..., tokens, 2 * half] by angles given as cos and sin [tokens, half].

    Pairs are (j, j + half): the half-split form. Attribute `inverse` rotates backwards, which is
    also the adjoint. The angles are constants: no gradient flows to them. With a fourth operand,
    u32 position [1], token t has row position + t of the angles, which may have more rows; beyond
    them, the last.
    """

    name = "rope"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        known = len(inputs) in (3, 4)
        require(known, self.name, "takes x, cos and sin, and perhaps a position", *inputs)
        real = all(t.dtype == "f32" for t in inputs[:3])
        require(real, self.name, "operands must be f32", *inputs[:3])
        x, cosine, sine = (t.shape for t in inputs[:3])
        good = len(x) >= 2 and x[-1] % 2 == 0 and cosine == sine
        good = good and len(cosine) == 2 and cosine[1] == x[-1] // 2
        good = good and (cosine[0] >= x[-2] if inputs[3:] else cosine[0] == x[-2])
        require(good, self.name, "cos and sin must be [tokens, width / 2]", *inputs)
        scalar = all(t == TensorType((1,), "u32") for t in inputs[3:])
        require(scalar, self.name, "the position must be u32 [1]", *inputs[3:])
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, cosine, sine = inputs[:3]
        if inputs[3:]:
            rows = np.minimum(int(inputs[3][0]) + np.arange(x.shape[-2]), len(cosine) - 1)
            cosine, sine = cosine[rows], sine[rows]
        sine = -sine if attrs["inverse"] else sine
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        angles = node.inputs[1:]
        turned = node.graph.add("rope", [upstream, *angles], inverse=not node.attrs["inverse"])
        return [turned, *(None for _ in angles)]

    def lower(self, node: Node, to: Lowering) -> None:
        *lead, tokens, width = node.shape
        angles = node.inputs[1].shape[0] if node.inputs[3:] else None
        kernel = _kernel(prod(lead), tokens, width // 2, node.attrs["inverse"], angles)
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for lead, tokens, half in (((), 1, 1), ((2,), 5, 3), ((3, 1), 7, 32)):
            angles = (tokens, half)
            for inverse in (False, True):
                yield Sample(((*lead, tokens, 2 * half), angles, angles), {"inverse": inverse})
        shapes = ((2, 3, 6), (7, 3), (7, 3), (1,))
        yield Sample(shapes, {"inverse": False}, integers={3: 7})


def rope(
    x: Node, cosine: Node, sine: Node, position: Node | None = None, *, inverse: bool = False
) -> Node:
    """Rotary embedding of x [..., tokens, width] by angles [tokens, width / 2].

    With a `position` u32 [1], the angles of token t are row position + t of a longer table.
    """
    operands = [x, cosine, sine] if position is None else [x, cosine, sine, position]
    return x.graph.add("rope", operands, inverse=inverse)
