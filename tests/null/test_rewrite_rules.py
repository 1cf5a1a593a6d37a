"""Every rule of the table: where it applies, where it must not, and that values never change."""

from collections.abc import Callable

import numpy as np
import pytest
from cases import Feeds, assert_close

from engine import ops
from engine.autodiff import gradients
from engine.graph import Graph, Node, verify
from engine.interpret import interpret
from engine.rewrite import rewrite, rewrite_traced
from engine.rewrite.rules import table
from engine.specialize import DeviceFacts, MatmulKey, matmul_candidates

Build = Callable[[Graph], Node]
TOLERANCE = 1e-6
"""Folded constants are stored as f32."""


def source(graph: Graph, *shape: int) -> Node:
    return graph.input(f"x{len(graph.nodes)}", shape)


def weight(graph: Graph, name: str, *shape: int) -> Node:
    return graph.parameter(name, shape, lambda rng, s: rng.normal(size=s))


def value(graph: Graph, *shape: int) -> Node:
    name = f"c{len(graph.nodes)}"
    return graph.constant(name, np.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape))


def siblings(graph: Graph, *between: int) -> list[Node]:
    """Products of one input with three weights, with a parameter of `between` after the first."""
    x = source(graph, 5, 64)
    parts = [ops.linear(x, weight(graph, "w0", 6, 64))]
    if between:
        bias = weight(graph, "between", *between)
        graph.output("bias", ops.gelu(bias))
    return [*parts, *(ops.linear(x, weight(graph, f"w{k}", 6, 64)) for k in (1, 2))]


def heads(parts: list[Node]) -> Node:
    """Each product as [heads, rows, width], as attention wants it."""
    moved = [ops.permute(ops.reshape(part, (5, 2, 3)), (1, 0, 2)) for part in parts]
    return ops.concatenate(moved, 0)


def gate_and_up(
    graph: Graph,
    order: tuple[int, int],
    shape: tuple[int, int] = (6, 64),
    x: Node | None = None,
) -> Node:
    x = source(graph, 5, shape[1]) if x is None else x
    weights = [weight(graph, f"w{k}", *shape) for k in range(2)]
    gate, up = (ops.linear(x, weights[k]) for k in order)
    return ops.swiglu(gate, up)


def by_head(x: Node, heads: int) -> Node:
    """Columns of [tokens, heads * width] as [heads, tokens, width], or the same of images."""
    *images, tokens, columns = x.shape
    split = ops.reshape(x, (*images, tokens, heads, columns // heads))
    order = (1, 0, 2) if not images else (0, 2, 1, 3)
    return ops.reshape(ops.permute(split, order), (-1, tokens, columns // heads))


def by_token(x: Node, images: int = 1) -> Node:
    """The way back of `by_head`."""
    tokens, width = x.shape[1:]
    split = ops.reshape(x, (images, -1, tokens, width))
    return ops.reshape(ops.permute(split, (0, 2, 1, 3)), (images * tokens, -1))


def self_attention(graph: Graph, between: int = 0, width: int = 4) -> Node:
    """Turned queries and keys and plain values from three products, 2 query heads per key head."""
    x, after = source(graph, 5, 64), []
    for name, count in (("q", 4), ("k", 2), ("v", 2)):
        after.append(ops.linear(x, weight(graph, name, count * width, 64)))
        if between and name == "q":
            graph.output("bias", ops.gelu(weight(graph, "between", between)))
    angles = [value(graph, 5, width // 2) for _ in range(2)]
    q, k = (ops.rope(by_head(y, y.shape[1] // width), *angles) for y in after[:2])
    return by_token(ops.attention(q, k, by_head(after[2], 2), causal=True))


def normed(graph: Graph, rows: int) -> Node:
    return ops.rms_norm(source(graph, rows, 64), source(graph, 64), eps=1e-2)


def decoded(graph: Graph, *, tokens: int = 1, turned: bool = True) -> Node:
    """What attends to the next tokens of a text, with 2 query heads per key head."""
    position, x = graph.input("position", (1,), "u32"), source(graph, tokens, 64)
    q, k, v = (
        by_head(ops.linear(x, weight(graph, name, 8 * heads, 64)), heads)
        for name, heads in (("q", 4), ("k", 2), ("v", 2))
    )
    if turned:
        angles = [value(graph, 9, q.shape[-1] // 2) for _ in range(2)]
        q, k = (ops.rope(x, *angles, position) for x in (q, k))
    keys, values = (
        ops.write_rows(graph.state(name, (2, 9, x.shape[-1])), x, position)
        for name, x in (("keys", k), ("values", v))
    )
    return ops.gelu(ops.cached_attention(q, keys, values, position))


def norm_gradient(graph: Graph, *, plus: Node | None = None) -> Node:
    x, statistics, g = source(graph, 3, 8), source(graph, 3, 2), source(graph, 3, 8)
    inputs = [x, statistics, g, *([] if plus is None else [plus])]
    return graph.add("rms_norm_grad", inputs, eps=1e-2, plus=plus is not None)


def joined(graph: Graph, *, turned: int = 0) -> Node:
    parts = [source(graph, 2, 3, 4), source(graph, 1, 3, 4)]
    angles = [value(graph, 3, 2) for _ in range(2)] if turned else []
    attrs = {"images": 1, "turned": turned, "inverse": True}
    return graph.add("join_heads", [*parts, *angles], **attrs)


def turned_columns(graph: Graph, x: Node) -> Node:
    angles = [value(graph, 3, 2) for _ in range(2)]
    return graph.add("rope_columns", [x, *angles], turned=8, inverse=True)


def used_twice(graph: Graph, y: Node) -> Node:
    """The value is an output by itself, so no other kernel can make it go away."""
    graph.output(f"kept{len(graph.nodes)}", y)
    return y


def product(graph: Graph, depth: int = 3) -> Node:
    return ops.matmul(source(graph, 5, depth), source(graph, depth, 8))


def column(graph: Graph) -> Node:
    return source(graph, 5, 1)


def row_in_other_shape(graph: Graph) -> Node:
    """A bias whose row is not a row of the product: 40 elements seen as [4, 10]."""
    return ops.add(ops.reshape(product(graph), (4, 10)), source(graph, 10))


def shuffled(x: Node, rows: int, factor: int) -> Node:
    """Blocks of factor x factor pixels in the last axis of `x`, spread over an image."""
    split = ops.reshape(x, (1, rows, -1, factor, factor, x.shape[-1] // factor**2))
    image = ops.permute(split, (0, 1, 3, 2, 4, 5))
    return ops.softmax(ops.reshape(image, (1, rows * factor, -1, split.shape[-1])))


def image(graph: Graph) -> Node:
    """A product with bias and residual whose columns are spread over an image [1, 2, 4, 8]."""
    made = ops.add(ops.matmul(source(graph, 2, 3), source(graph, 3, 32)), source(graph, 32))
    split = ops.reshape(ops.add(source(graph, 2, 32), made), (1, 1, 2, 2, 2, 8))
    return ops.reshape(ops.permute(split, (0, 1, 3, 2, 4, 5)), (1, 2, 4, 8))


APPLIES: dict[str, list[Build]] = {
    "constant folding": [
        lambda g: ops.mul(source(g, 3, 4), ops.gelu(value(g, 3, 4))),
        lambda g: ops.add(
            source(g, 4), ops.reshape(ops.matmul(value(g, 2, 2), value(g, 2, 2)), (4,))
        ),
        lambda g: ops.mul(source(g, 2, 3), ops.affine(ops.reshape(value(g, 6), (2, 3)), 2.0)),
    ],
    "reshape of reshape": [
        lambda g: ops.softmax(ops.reshape(ops.reshape(source(g, 4, 6), (24,)), (3, 8))),
        lambda g: ops.softmax(ops.reshape(ops.reshape(source(g, 4, 6), (24,)), (4, 6))),
    ],
    "view of scalar": [
        lambda g: ops.softmax(
            ops.reshape(ops.expand(ops.softmax(source(g, 1, 1)), (6, 1)), (2, 3))
        ),
    ],
    "move of move": [
        lambda g: ops.permute(ops.permute(source(g, 2, 3, 4), (1, 2, 0)), (1, 0, 2)),
        lambda g: ops.permute(ops.permute(source(g, 2, 3, 4), (1, 2, 0)), (2, 0, 1)),
        lambda g: ops.take(ops.take(source(g, 9, 4), 0, 2, 8), 0, 1, 4),
        lambda g: ops.permute(
            ops.reshape(ops.take(source(g, 5, 8), 1, 2, 6), (5, 2, 2)), (1, 0, 2)
        ),
    ],
    "no-op move": [
        lambda g: ops.softmax(ops.permute(source(g, 3, 4), (0, 1))),
        lambda g: ops.softmax(ops.permute(source(g, 3, 1, 4), (1, 0, 2))),
        lambda g: ops.softmax(ops.take(source(g, 3, 4), 1, 0, 4)),
        lambda g: ops.softmax(ops.pad(source(g, 3, 4), 1, 0, 0)),
        lambda g: ops.softmax(ops.expand(source(g, 3, 4), (3, 4))),
    ],
    "needless copy": [lambda g: ops.softmax(ops.copy(source(g, 3, 4)))],
    "affine of affine": [
        lambda g: ops.affine(ops.affine(source(g, 7), 2.0, 1.0), -3.0, 0.5),
        lambda g: ops.softmax(ops.affine(ops.affine(source(g, 3, 4), -1.0), -1.0)),
    ],
    "no-op affine": [lambda g: ops.softmax(ops.affine(source(g, 3, 4), 1.0))],
    "scaled sum": [
        lambda g: ops.affine(g.add("sum", [source(g, 3, 5, 2)], scale=0.5), 4.0),
    ],
    "negative added": [
        lambda g: ops.add(source(g, 4), ops.affine(source(g, 4), -1.0)),
        lambda g: ops.add(ops.affine(source(g, 4), -1.0), source(g, 4)),
        lambda g: ops.sub(source(g, 4), ops.affine(source(g, 4), -1.0)),
    ],
    "broadcast operand": [
        lambda g: ops.mul(source(g, 5, 4), ops.expand(ops.softmax(source(g, 1, 4)), (5, 4))),
    ],
    "silu": [
        lambda g: ops.mul(x := source(g, 3, 4), ops.sigmoid(x)),
        lambda g: ops.mul(ops.sigmoid(x := source(g, 3, 4)), x),
    ],
    "group norm, silu": [
        lambda g: ops.silu(
            ops.group_norm(source(g, 1, 2, 3, 4), source(g, 4), source(g, 4), groups=2, eps=1e-2)
        ),
    ],
    "transposed operand": [
        lambda g: ops.matmul(ops.permute(source(g, 3, 5), (1, 0)), source(g, 3, 4)),
        lambda g: ops.matmul(source(g, 2, 5, 3), ops.permute(source(g, 2, 4, 3), (0, 2, 1))),
        lambda g: ops.matmul(x := ops.permute(source(g, 3, 5), (1, 0)), x, transpose_b=True),
    ],
    "transposed product": [
        lambda g: ops.permute(ops.matmul(source(g, 2, 5, 3), source(g, 2, 3, 4)), (0, 2, 1)),
        lambda g: ops.permute(
            ops.matmul(source(g, 3, 5), source(g, 4, 3), transpose_a=True, transpose_b=True), (1, 0)
        ),
    ],
    "product of windows": [
        lambda g: ops.linear(ops.unfold(source(g, 2, 9, 8, 3), 4, stride=4), source(g, 5, 48)),
        lambda g: ops.gelu(
            ops.linear(
                ops.unfold(source(g, 1, 4, 5, 4), 3, padding=1), source(g, 8, 36), source(g, 8)
            )
        ),
    ],
    "computed rows": [
        lambda g: ops.linear(normed(g, 1), source(g, 6, 64)),
        lambda g: ops.add(
            ops.linear(x := normed(g, 4), source(g, 6, 64)), gate_and_up(g, (0, 1), x=x)
        ),
        lambda g: ops.gelu(ops.linear(normed(g, 2), source(g, 6, 64), source(g, 6))),
    ],
    "activated norm": [
        lambda g: ops.gelu(ops.layer_norm(source(g, 3, 8), source(g, 8), source(g, 8), eps=1e-2)),
        lambda g: ops.softmax(ops.affine(normed(g, 5), 2.0, 1.0)),
        lambda g: ops.tanh(
            ops.group_norm(source(g, 1, 2, 3, 4), source(g, 4), source(g, 4), groups=2, eps=1e-2)
        ),
    ],
    "moved product": [
        lambda g: ops.softmax(
            ops.permute(ops.matmul(source(g, 2, 5, 3), source(g, 2, 3, 4)), (1, 0, 2))
        ),
        lambda g: shuffled(ops.add(product(g), source(g, 8)), 1, 2),
        lambda g: ops.softmax(ops.take(ops.add(product(g), source(g, 5, 8)), 0, 1, 4)),
        lambda g: ops.take(ops.reshape(product(g), (1, 5, 8)), 1, 2, 3),
        lambda g: ops.permute(
            ops.reshape(ops.add(source(g, 5, 8), product(g)), (5, 2, 4)), (1, 0, 2)
        ),
        lambda g: shuffled(
            ops.conv2d(source(g, 1, 4, 5, 3), source(g, 16, 27), source(g, 16), 3, padding=1), 4, 2
        ),
    ],
    "followed product": [
        lambda g: ops.sigmoid(ops.add(image(g), ops.softmax(source(g, 1, 2, 4, 8)))),
        lambda g: ops.mul(ops.reshape(x := image(g), (x.type.size,)), source(g, 1)),
        lambda g: ops.gelu(ops.sub(source(g, 2, 8), ops.take(product(g), 0, 1, 3))),
    ],
    "recomputed value": [
        lambda g: ops.matmul(
            ops.square(x := ops.sub(source(g, 4, 8), source(g, 8))), ops.tanh(x), transpose_b=True
        ),
        lambda g: ops.concat(ops.add(product(g), x := ops.silu(source(g, 5, 8))), ops.gelu(x), 0),
    ],
    "written heads": [decoded, lambda g: decoded(g, turned=False)],
    "decoded heads": [decoded],
    "turned as read": [
        lambda g: ops.gelu(self_attention(g, width=8)),
        lambda g: ops.gelu(self_attention(g, 64, width=16)),
    ],
    "attention by column": [
        self_attention,
        lambda g: self_attention(g, 64),
        lambda g: by_token(ops.attention(*(by_head(source(g, 2, 3, 8), 2) for _ in range(3))), 2),
    ],
    "joined and turned": [lambda g: turned_columns(g, joined(g))],
    "norm gradient added": [
        lambda g: ops.add(source(g, 3, 8), norm_gradient(g)),
        lambda g: ops.add(ops.reshape(norm_gradient(g), (24,)), source(g, 24)),
    ],
    "packed gate and up": [
        lambda g: gate_and_up(g, (0, 1)),
    ],
    "gated product": [lambda g: gate_and_up(g, (0, 1))],
    "packed siblings": [
        lambda g: heads(siblings(g)),
        lambda g: heads(siblings(g, 64)[1:]),
    ],
    "epilogue": [
        lambda g: ops.gelu(ops.add(product(g), source(g, 8))),
        lambda g: ops.add(source(g, 5, 8), ops.mul(product(g), source(g, 8))),
        lambda g: ops.add(product(g), ops.matmul(source(g, 5, 2), source(g, 2, 8))),
        lambda g: ops.mul(product(g), source(g, 1)),
        lambda g: ops.add(source(g, 5, 2, 4), ops.reshape(product(g), (5, 2, 4))),
        lambda g: ops.gelu(ops.conv2d(source(g, 1, 4, 5, 3), source(g, 2, 27), source(g, 2), 3)),
    ],
    "pointwise chain": [
        lambda g: ops.gelu(ops.add(source(g, 3, 4), source(g, 4))),
        lambda g: ops.gelu(ops.reshape(ops.add(source(g, 3, 4), source(g, 1)), (2, 6))),
        lambda g: ops.mul(x := ops.gelu(source(g, 3, 4)), x),
    ],
}

MUST_NOT: dict[str, list[Build]] = {
    # A larger result would take memory and traffic instead of a launch.
    "constant folding": [
        lambda g: ops.softmax(ops.expand(value(g, 1, 4), (5, 4))),
        lambda g: ops.mul(value(g, 4), ops.gelu(source(g, 4))),
    ],
    "reshape of reshape": [
        lambda g: ops.reshape(ops.softmax(ops.reshape(source(g, 4, 6), (3, 8))), (24,)),
    ],
    "view of scalar": [lambda g: ops.reshape(ops.expand(source(g, 1, 3), (2, 3)), (6,))],
    # The reshape needs a copy, or another op stands between.
    "move of move": [
        lambda g: ops.permute(ops.reshape(ops.permute(source(g, 4, 6), (1, 0)), (4, 6)), (1, 0)),
        lambda g: ops.take(ops.softmax(ops.permute(source(g, 4, 6), (1, 0))), 0, 1, 3),
    ],
    "no-op move": [
        lambda g: ops.softmax(ops.permute(source(g, 4, 4), (1, 0))),
        lambda g: ops.softmax(ops.take(source(g, 3, 4), 1, 0, 3)),
        lambda g: ops.softmax(ops.pad(source(g, 3, 4), 1, 0, 1)),
    ],
    "affine of affine": [lambda g: ops.affine(ops.gelu(ops.affine(source(g, 7), 2.0)), 3.0)],
    "no-op affine": [lambda g: ops.affine(source(g, 3), 1.0, 1e-3)],
    "scaled sum": [lambda g: ops.affine(g.add("sum", [source(g, 3, 5, 2)], scale=0.5), 4.0, 1.0)],
    "negative added": [
        lambda g: ops.add(source(g, 4), ops.affine(source(g, 4), -1.0, 0.5)),
        lambda g: ops.sub(ops.affine(source(g, 4), -1.0), source(g, 4)),
    ],
    # The other operand does not carry the shape.
    "broadcast operand": [
        lambda g: ops.mul(source(g, 1, 4), ops.expand(ops.softmax(source(g, 1, 4)), (5, 4))),
    ],
    "silu": [lambda g: ops.mul(source(g, 4), ops.sigmoid(source(g, 4)))],
    "group norm, silu": [
        lambda g: ops.silu(ops.layer_norm(source(g, 3, 4), source(g, 4), source(g, 4), eps=1e-2)),
    ],
    "transposed operand": [
        lambda g: ops.matmul(ops.permute(source(g, 3, 2, 5), (1, 0, 2)), source(g, 2, 5, 4)),
    ],
    "transposed product": [
        lambda g: ops.permute(ops.matmul(source(g, 2, 5, 3), source(g, 2, 3, 4)), (1, 0, 2)),
        lambda g: ops.permute(
            used_twice(g, ops.matmul(source(g, 9, 30), source(g, 30, 9))), (1, 0)
        ),
    ],
    # Another reader; a matrix [k, n]; windows as the matrix; lines that are not of fours.
    "product of windows": [
        lambda g: ops.linear(
            used_twice(g, ops.unfold(source(g, 1, 8, 8, 3), 4, stride=4)), source(g, 5, 48)
        ),
        lambda g: ops.matmul(ops.unfold(source(g, 1, 8, 8, 3), 4, stride=4), source(g, 48, 5)),
        lambda g: ops.linear(source(g, 5, 48), ops.unfold(source(g, 1, 8, 8, 3), 4, stride=4)),
        lambda g: ops.linear(ops.unfold(source(g, 1, 8, 8, 3), 4, stride=2), source(g, 5, 48)),
    ],
    # Too many rows, another reader, a matrix [k, n], rows as the matrix.
    "computed rows": [
        lambda g: ops.linear(normed(g, 5), source(g, 6, 64)),
        lambda g: ops.concat(x := normed(g, 1), ops.linear(x, source(g, 6, 64)), 1),
        lambda g: ops.matmul(normed(g, 1), source(g, 64, 6)),
        lambda g: ops.linear(source(g, 3, 64), normed(g, 2)),
    ],
    # Another reader; a norm with a function of its own; a function of two operands.
    "activated norm": [
        lambda g: ops.gelu(used_twice(g, normed(g, 5))),
        lambda g: ops.gelu(
            ops.group_norm_silu(source(g, 1, 2, 3, 4), source(g, 4), source(g, 4), 2, eps=1e-2)
        ),
        lambda g: ops.mul(normed(g, 5), source(g, 64)),
    ],
    # Another reader; columns; a last axis that moves, or is not of fours; rows that are not.
    "moved product": [
        lambda g: shuffled(used_twice(g, product(g)), 1, 2),
        lambda g: ops.take(used_twice(g, product(g)), 0, 1, 4),
        lambda g: ops.take(product(g), 1, 0, 4),
        lambda g: ops.permute(ops.reshape(product(g), (5, 2, 4)), (1, 2, 0)),
        lambda g: ops.permute(ops.reshape(product(g), (5, 4, 2)), (1, 0, 2)),
        lambda g: ops.permute(
            ops.reshape(ops.matmul(source(g, 4, 3), source(g, 3, 6)), (3, 2, 4)), (1, 0, 2)
        ),
    ],
    # Another reader; an operand in rows; one that is ready later; too many.
    "followed product": [
        lambda g: ops.gelu(used_twice(g, image(g))),
        lambda g: ops.add(image(g), source(g, 8)),
        lambda g: ops.add(image(g), ops.softmax(ops.softmax(image(g)))),
        lambda g: ops.add(
            image(g), ops.add(*(ops.add(*(source(g, 1, 2, 4, 8) for _ in "ab")) for _ in "ab"))
        ),
    ],
    # A reader that cannot compute it; one that reads it repeated; an output.
    "recomputed value": [
        lambda g: ops.matmul(ops.square(x := ops.gelu(source(g, 4, 4))), x),
        lambda g: ops.matmul(
            ops.add(x := ops.gelu(source(g, 4)), source(g, 4, 4)),
            ops.expand(ops.reshape(ops.tanh(x), (4, 1)), (4, 4)),
        ),
        lambda g: ops.matmul(
            ops.square(x := used_twice(g, ops.gelu(source(g, 4, 4)))), ops.tanh(x)
        ),
    ],
    # Two tokens; a row that is written as it is.
    "written heads": [
        lambda g: decoded(g, tokens=2),
        lambda g: ops.write_rows(
            g.state("s", (2, 9, 4)), source(g, 2, 1, 4), g.input("position", (1,), "u32")
        ),
    ],
    # Two tokens; nothing is turned.
    "decoded heads": [lambda g: decoded(g, tokens=2), lambda g: decoded(g, turned=False)],
    # Quads would hold both halves of a head; no heads are turned.
    "turned as read": [
        lambda g: ops.gelu(self_attention(g)),
        lambda g: ops.gelu(
            by_token(ops.attention(*(by_head(source(g, 3, 16), 2) for _ in range(3))))
        ),
    ],
    # The result stays by head; an operand is by head already; images lie behind tokens.
    "attention by column": [
        lambda g: ops.attention(*(by_head(source(g, 3, 8), 2) for _ in range(3))),
        lambda g: by_token(
            ops.attention(source(g, 2, 3, 4), *(by_head(source(g, 3, 8), 2) for _ in range(2)))
        ),
        lambda g: by_token(
            ops.attention(
                *(ops.permute(source(g, 3, 4, 2), (1, 0, 2)) for _ in range(2)),
                ops.permute(source(g, 4, 2, 3), (0, 2, 1)),
            )
        ),
    ],
    "joined and turned": [lambda g: turned_columns(g, joined(g, turned=4))],
    "norm gradient added": [
        lambda g: ops.add(source(g, 3, 8), norm_gradient(g, plus=source(g, 3, 8))),
        lambda g: ops.add(source(g, 2, 3, 8), norm_gradient(g)),
        lambda g: ops.add(source(g, 3, 8), used_twice(g, norm_gradient(g))),
    ],
    # The wrong order in memory, and sizes that are no multiples of the alignment.
    "packed gate and up": [
        lambda g: gate_and_up(g, (1, 0)),
        lambda g: gate_and_up(g, (0, 1), (6, 7)),
    ],
    # An odd width, and a product that something else reads.
    "gated product": [
        lambda g: gate_and_up(g, (0, 1), (5, 64)),
        lambda g: ops.swiglu_concat(
            used_twice(
                g,
                g.add("packed_matmul", [source(g, 5, 8), *(source(g, 6, 8) for _ in range(2))]),
            )
        ),
    ],
    # Not neighbours; copies for whom a whole is no help; weights that are no parameters.
    "packed siblings": [
        lambda g: heads(siblings(g, 64)[:2]),
        lambda g: ops.concatenate([ops.softmax(part) for part in siblings(g)], 0),
        lambda g: heads([ops.linear(x, source(g, 6, 64)) for x in [source(g, 5, 64)] * 3]),
    ],
    "epilogue": [
        lambda g: ops.add(product(g), column(g)),
        lambda g: ops.gelu(used_twice(g, product(g, depth=30))),
        row_in_other_shape,
        lambda g: ops.add(ops.matmul(source(g, 5, 3), source(g, 3, 1)), source(g, 5, 8)),
    ],
    "pointwise chain": [
        lambda g: ops.add(source(g, 3, 4), ops.gelu(source(g, 4))),
        lambda g: ops.gelu(used_twice(g, ops.affine(source(g, 3, 4), 2.0))),
    ],
}

CASES = [
    pytest.param(rule, build, applies, id=f"{rule}-{'yes' if applies else 'no'}-{k}")
    for applies, cases in ((True, APPLIES), (False, MUST_NOT))
    for rule, builds in cases.items()
    for k, build in enumerate(builds)
]


def test_every_rule_has_a_case() -> None:
    names = [rule.name for rule in table()]
    assert len(set(names)) == len(names)
    assert set(APPLIES) == set(names)
    # A copy that is not a gradient's is always needless.
    assert set(MUST_NOT) == set(names) - {"needless copy"}


def feeds_for(graph: Graph) -> Feeds:
    rng = np.random.default_rng(11)
    fed = [node for node in graph.nodes if node.op in ("input", "parameter")]
    feeds = {node.name: rng.uniform(-1, 1, node.shape) for node in fed}
    positions = (node for node in fed if node.type.dtype == "u32")
    return feeds | {node.name: np.array([2], np.uint32) for node in positions}


def assert_equal_outputs(graph: Graph, rewritten: Graph) -> None:
    verify(rewritten)
    feeds = feeds_for(graph)
    known = {node.name for node in rewritten.nodes}
    want = interpret(graph, feeds, [*graph.outputs.values()])
    feeds = {name: fed for name, fed in feeds.items() if name in known}
    got = interpret(rewritten, feeds, [*rewritten.outputs.values()])
    assert [*rewritten.outputs] == [*graph.outputs]
    for name, g, w in zip(graph.outputs, got, want, strict=True):
        assert_close(g, w, TOLERANCE, name)


@pytest.mark.parametrize(("rule", "build", "applies"), CASES)
def test_rule(rule: str, build: Build, applies: bool) -> None:
    graph = Graph()
    graph.output("y", build(graph))
    before = str(graph)
    rewritten, trace = rewrite_traced(graph)
    assert str(graph) == before, "the original changed"
    assert (rule in {applied.rule for applied in trace}) == applies, "\n".join(map(str, trace))
    assert_equal_outputs(graph, rewritten)
    assert all(applied.after <= applied.before for applied in trace)


def test_what_a_split_product_leaves_is_finished_where_heads_are_turned() -> None:
    graph = Graph()
    graph.output("y", ops.gelu(self_attention(graph, width=8)))
    key = MatmulKey("nt", 1, 5, 64, 64)
    split = next(c for c in matmul_candidates(key, DeviceFacts()) if c.split_k == 2)
    found = rewrite(graph, facts=DeviceFacts(table={key: split}))
    assert "rope_columns" in {node.op for node in found.nodes}
    assert "rope_columns" not in {node.op for node in rewrite(graph).nodes}


NO_GRADIENTS = ("joined and turned", "norm gradient added", "written heads", "decoded heads")
"""Rules of ops that only gradients have, or that write, and that have none themselves."""


@pytest.mark.parametrize(
    ("rule", "build", "applies"),
    [case for case in CASES if case.values[0] not in NO_GRADIENTS],
)
def test_gradients_survive(rule: str, build: Build, applies: bool) -> None:
    graph = Graph()
    y = build(graph)
    coefficient = graph.constant("coefficient", np.linspace(-1, 2, y.type.size).reshape(y.shape))
    loss = ops.reduce_sum(ops.mul(y, coefficient), range(len(y.shape)))
    wanted = [node for node in graph.nodes if node.op in ("input", "parameter")]
    for node, grad in zip(wanted, gradients(loss, wanted), strict=True):
        graph.output(f"gradient of {node.name}", grad)
    assert_equal_outputs(graph, rewrite(graph))


@pytest.mark.parametrize(("rule", "build", "applies"), CASES)
def test_saturation_keeps_values(rule: str, build: Build, applies: bool) -> None:
    pytest.importorskip("egglog")
    graph = Graph()
    graph.output("y", build(graph))
    assert_equal_outputs(graph, rewrite(graph, "egraph"))
