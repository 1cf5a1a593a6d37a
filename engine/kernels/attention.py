"""Attention and its gradient as streams of rows, and the row sums that the gradient needs.

With s = scale q k^T, p = exp(s - lse), g the upstream gradient of y = p v, delta = rowsum(g * y)
and ds = p (g v^T - delta): dq = scale ds k, dk = scale ds^T q, dv = p^T g. Scores are computed
again from the log-sum-exp; queries own dq, keys own dk and dv: nothing is added atomically. Or keys
keep scale ds^T in memory, and dq is a product of it (`attention_product`).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.heads import Place
from engine.kernels.rows import row_kernel
from engine.kernels.splits import Given, Splits
from engine.kernels.streaming import LOG2E, Geometry, Stream
from engine.kernels.streaming_direct import direct
from engine.kernels.streaming_matrix import by_units
from engine.kernels.streaming_tiled import tiled
from engine.kernels.wgsl import Kernel, bindings, f32
from engine.specialize_attention import AttentionChoice


@dataclass(frozen=True)
class AttentionShape:
    """q [heads, queries, width], k and v [kv_heads, keys, width].

    Query head h reads key head h // (heads / kv_heads). With `causal`, query i sees keys up to
    i + keys - queries, or with `cached` up to i + position, which is known at run time.
    """

    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    causal: bool
    scale: float
    cached: bool = False
    places: tuple[tuple[str, Place], ...] = ()
    """Where matrices lie that are not dense, by the names that they have in the kernels."""
    turned: tuple[str, ...] = ()
    """Which of q and k rotary positions turn as they are read."""

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads


def kernel(program: Stream, choice: AttentionChoice) -> Kernel:
    """The launch that computes a program, or with splits its parts."""
    ways = {"direct": direct, "tiled": tiled, "matrix": by_units}
    return ways[choice.variant](program, choice)


def _queries(shape: AttentionShape) -> Geometry:
    """Queries own, keys stream."""
    last_sees_all = shape.keys - shape.queries if shape.causal else 0
    return Geometry(
        heads=shape.heads,
        rows=shape.queries,
        others=shape.keys,
        width=shape.width,
        sharers=shape.group,
        sees="past" if shape.causal else "all",
        offset=None if shape.cached else last_sees_all,
    )


def _keys(shape: AttentionShape) -> Geometry:
    """Keys own, the queries of all heads of their group stream."""
    return Geometry(
        heads=shape.kv_heads,
        rows=shape.keys,
        others=shape.queries,
        width=shape.width,
        members=shape.group,
        sees="future" if shape.causal else "all",
        offset=shape.keys - shape.queries if shape.causal else 0,
    )


def attention(shape: AttentionShape, *, lse: bool) -> Stream:
    """y = softmax(scale q k^T) v from q, k and v; also the log-sum-exp if `lse`.

    Cosines and sines, if any are `turned`, and the position of a `cached` shape follow.
    """
    return Stream(
        label="attention",
        over=_queries(shape),
        scale=shape.scale,
        matrices=("q", "k", "v"),
        products=(("s", "q", "k"),),
        sums=(("w", "v", "y"),),
        writes_lse=lse,
        places=dict(shape.places),
        turned=shape.turned,
    )


# The product with the streamed matrix that is summed first comes last: its rows are at hand.


def grad_queries(shape: AttentionShape) -> Stream:
    """Dq from q, k, v, g, lse and delta."""
    weights = f"let w{{c}} = exp2(s{{c}} - own_lse * {f32(LOG2E)})"
    weights += f" * (r{{c}} - own_delta) * {f32(shape.scale)};"
    return Stream(
        label="attention_grad_q",
        over=_queries(shape),
        scale=shape.scale,
        matrices=("q", "k", "v", "g"),
        products=(("r", "g", "v"), ("s", "q", "k")),
        weights=weights,
        sums=(("w", "k", "dq"),),
        own_vectors=("lse", "delta"),
        places=dict(shape.places),
    )


def grad_keys(shape: AttentionShape, *, keep: bool = False) -> Stream:
    """Dk and dv from q, k, v, g, lse and delta, summed over the query heads of a key head; also
    scale ds^T if `keep`.
    """
    weights = f"let p{{c}} = exp2(s{{c}} - lse{{c}} * {f32(LOG2E)});"
    weights += f" let w{{c}} = p{{c}} * (r{{c}} - delta{{c}}) * {f32(shape.scale)};"
    return Stream(
        label="attention_grad_kv",
        over=_keys(shape),
        scale=shape.scale,
        matrices=("q", "k", "v", "g"),
        products=(("r", "v", "g"), ("s", "k", "q")),
        weights=weights,
        sums=(("w", "q", "dk"), ("p", "g", "dv")),
        streamed_vectors=("lse", "delta"),
        kept="w" if keep else "",
        places=dict(shape.places),
    )


def delta(
    rows: int, width: int, lanes: int, place: Place | None = None, splits: Splits | None = None
) -> Kernel:
    """Rowsum(g * y) of g and y, both at the same place, dense [rows, width] unless given; `lanes`
    invocations per row.

    With `splits` their operands come in the place of g, which is the first result.
    """
    wide = width % 4 == 0
    element, count = ("vec4<f32>", width // 4) if wide else ("f32", width)
    product = "dot(g[at], y[at])" if wide else "g[at] * y[at]"
    base = f"row * {count}u" if place is None else place.offset("row", width, width // count)
    upstream = Given("g", element, splits)
    body = f"""
    let base = {base};
    var part = 0.0;
    for (var k = t; k < {count}u; k += {lanes}u) {{
        let at = base + k;
        {upstream.finish("at")}
        part += {product};
    }}
    let sum = total(part, t);
    if (t == 0u) {{ delta[row] = sum; }}"""
    head = bindings([*upstream.reads(), ("y", element)], [*upstream.writes(), ("delta", "f32")])
    head += upstream.function()
    flops = 2 * rows * width + upstream.flops
    return row_kernel("attention_delta", head, rows, lanes, body, flops)
