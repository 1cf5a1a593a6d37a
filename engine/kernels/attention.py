"""Attention and its gradient as streams of rows, and the row sums that the gradient needs.

With s = scale q k^T, p = exp(s - lse), g the upstream gradient of y = p v, delta = rowsum(g * y)
and ds = p (g v^T - delta): dq = scale ds k, dk = scale ds^T q, dv = p^T g. Scores are computed
again from the log-sum-exp; queries own dq, keys own dk and dv: nothing is added atomically.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.streaming import Geometry, Stream
from engine.kernels.streaming_direct import direct
from engine.kernels.streaming_tiled import tiled
from engine.kernels.wgsl import Kernel, bindings, f32, linear_grid, linear_main
from engine.specialize import AttentionChoice


@dataclass(frozen=True)
class AttentionShape:
    """q [heads, queries, width], k and v [kv_heads, keys, width].

    Query head h reads key head h // (heads / kv_heads). With `causal`, query i sees keys up to
    i + keys - queries.
    """

    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    causal: bool
    scale: float

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads


def _kernel(program: Stream, choice: AttentionChoice) -> Kernel:
    return (direct if choice.variant == "direct" else tiled)(program, choice)


def _queries(shape: AttentionShape) -> Geometry:
    """Queries own, keys stream."""
    return Geometry(
        heads=shape.heads,
        rows=shape.queries,
        others=shape.keys,
        width=shape.width,
        sharers=shape.group,
        sees="past" if shape.causal else "all",
        offset=shape.keys - shape.queries if shape.causal else 0,
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


def attention(shape: AttentionShape, choice: AttentionChoice, *, lse: bool) -> Kernel:
    """y = softmax(scale q k^T) v from q, k and v; also the log-sum-exp if `lse`."""
    program = Stream(
        label="attention",
        over=_queries(shape),
        scale=shape.scale,
        matrices=("q", "k", "v"),
        products=(("s", "q", "k"),),
        sums=(("w", "v", "y"),),
        writes_lse=lse,
    )
    return _kernel(program, choice)


# The product with the streamed matrix that is summed first comes last: its rows are at hand.


def grad_queries(shape: AttentionShape, choice: AttentionChoice) -> Kernel:
    """Dq from q, k, v, g, lse and delta."""
    scale = f32(shape.scale)
    program = Stream(
        label="attention_grad_q",
        over=_queries(shape),
        scale=shape.scale,
        matrices=("q", "k", "v", "g"),
        products=(("r", "g", "v"), ("s", "q", "k")),
        weights=f"let w{{c}} = exp(s{{c}} - own_lse) * (r{{c}} - own_delta) * {scale};",
        sums=(("w", "k", "dq"),),
        own_vectors=("lse", "delta"),
    )
    return _kernel(program, choice)


def grad_keys(shape: AttentionShape, choice: AttentionChoice) -> Kernel:
    """Dk and dv from q, k, v, g, lse and delta, summed over the query heads of a key head."""
    weights = "let p{c} = exp(s{c} - lse{c});"
    weights += f" let w{{c}} = p{{c}} * (r{{c}} - delta{{c}}) * {f32(shape.scale)};"
    program = Stream(
        label="attention_grad_kv",
        over=_keys(shape),
        scale=shape.scale,
        matrices=("q", "k", "v", "g"),
        products=(("r", "v", "g"), ("s", "k", "q")),
        weights=weights,
        sums=(("w", "q", "dk"), ("p", "g", "dv")),
        streamed_vectors=("lse", "delta"),
    )
    return _kernel(program, choice)


def delta(rows: int, width: int) -> Kernel:
    """Rowsum(g * y) of g and y [rows, width]; one invocation per row, as rows are short."""
    wide = width % 4 == 0
    element, count = ("vec4<f32>", width // 4) if wide else ("f32", width)
    product = "dot(g[base + k], y[base + k])" if wide else "g[base + k] * y[base + k]"
    body = f"""
    let base = i * {count}u;
    var sum = 0.0;
    for (var k = 0u; k < {count}u; k++) {{ sum += {product}; }}
    delta[i] = sum;"""
    source = bindings([("g", element), ("y", element)], [("delta", "f32")])
    source += linear_main(rows, 64, body)
    return Kernel("attention_delta", source, linear_grid(rows, 64), 2 * rows * width)
