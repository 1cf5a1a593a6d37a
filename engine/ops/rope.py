"""Rotary position embedding over precomputed angles: x * cos + rotate_half(x) * sin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require


def _kernel(lead: int, tokens: int, half: int, inverse: bool) -> Kernel:
    """One invocation rotates one pair (j, j + half) of one token."""
    count = lead * tokens * half
    sign = "-" if inverse else ""
    body = f"""
    let j = i % {half}u;
    let token = (i / {half}u) % {tokens}u;
    let base = (i / {half}u) * {2 * half}u + j;
    let c = cosine[token * {half}u + j];
    let s = {sign}sine[token * {half}u + j];
    let low = x[base];
    let high = x[base + {half}u];
    y[base] = low * c - high * s;
    y[base + {half}u] = high * c + low * s;"""
    reads = [("x", "f32"), ("cosine", "f32"), ("sine", "f32")]
    source = bindings(reads, [("y", "f32")]) + linear_main(count, 64, body)
    return Kernel("rope", source, linear_grid(count, 64), 6 * count)


@register
class Rope(Op):
    """Rotate x [..., tokens, 2 * half] by angles given as cos and sin [tokens, half].

    Pairs are (j, j + half): the half-split form. Attribute `inverse` rotates backwards, which is
    also the adjoint. The angles are constants: no gradient flows to them.
    """

    name = "rope"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 3, self.name, "takes x, cos and sin", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        x, cosine, sine = (t.shape for t in inputs)
        good = len(x) >= 2 and x[-1] % 2 == 0 and cosine == sine == (x[-2], x[-1] // 2)
        require(good, self.name, "cos and sin must be [tokens, width / 2]", *inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, cosine, sine = inputs
        sine = -sine if attrs["inverse"] else sine
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        _, cosine, sine = node.inputs
        turned = rope(upstream, cosine, sine, inverse=not node.attrs["inverse"])
        return [turned, None, None]

    def lower(self, node: Node, to: Lowering) -> None:
        *lead, tokens, width = node.shape
        kernel = _kernel(prod(lead), tokens, width // 2, node.attrs["inverse"])
        to.dispatch(kernel, node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        for lead, tokens, half in (((), 1, 1), ((2,), 5, 3), ((3, 1), 7, 32)):
            angles = (tokens, half)
            for inverse in (False, True):
                yield Sample(((*lead, tokens, 2 * half), angles, angles), {"inverse": inverse})


def rope(x: Node, cosine: Node, sine: Node, *, inverse: bool = False) -> Node:
    """Rotary embedding of x [..., tokens, width] by angles [tokens, width / 2]."""
    return x.graph.add("rope", [x, cosine, sine], inverse=inverse)
