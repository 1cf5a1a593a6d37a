"""Lowering of attention's gradients: two streams that both score, or one that keeps its weights
for a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from engine.graph import Node
from engine.kernels.attention import AttentionShape, grad_keys, grad_queries
from engine.kernels.attention_product import cut_keys, grad_queries_product
from engine.lower import Lowering, Operand
from engine.ops.stream import finish_parts, lower_stream
from engine.specialize import choose_matmul
from engine.specialize_attention import choose_attention, keep_weights


def lower_gradients(
    to: Lowering, s: AttentionShape, reads: Sequence[Operand], grad_q: Node
) -> None:
    """Append the launches for dq and, where they are read, its further results dk and dv.

    Reads are q, k, v, g, lse and delta.
    """
    further = [to.extra(grad_q, 0), to.extra(grad_q, 1)]
    if further == [None, None]:
        lower_stream(to, grad_queries(s), reads, grad_q)
        return
    unread = (s.kv_heads, s.keys, s.width)
    writes = [to.scratch(unread) if buffer is None else buffer for buffer in further]
    program = grad_keys(s, keep=True)
    size = choose_attention(program.key, to.facts).rows
    shape = (s.heads, ceil(s.keys / size), s.queries, size)
    # Under a causal mask keys leave out whole blocks, which would have to be zeros.
    if s.causal or not keep_weights(prod(shape), to.facts):
        lower_stream(to, grad_queries(s), reads, grad_q)
        lower_stream(to, grad_keys(s), reads, *writes)
        return
    kept = to.scratch(shape)
    lower_stream(to, program, reads, *writes, kept)
    _lower_product(to, s, size, [kept, reads[1]], grad_q)


def _lower_product(
    to: Lowering, s: AttentionShape, size: int, reads: Sequence[Operand], grad_q: Node
) -> None:
    """Dq from scale ds, in blocks of `size` keys, and k."""
    # As busy as one product of all heads' rows.
    choice = choose_matmul(1, s.heads * s.queries, s.width, s.keys, to.facts)
    blocks = cut_keys(s, choice, size)
    kernel = grad_queries_product(s, choice, blocks)
    program = grad_queries(s)
    if blocks.parts == 1 and "dq" not in program.places:
        to.dispatch(kernel, reads, grad_q)
        return
    parts = to.scratch((blocks.parts, s.heads, s.queries, s.width))
    to.dispatch(kernel, reads, parts)
    finish_parts(to, program, blocks.parts, [parts], [grad_q])
