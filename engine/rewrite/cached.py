"""One token of a text that goes on: its heads stay in the row that a product wrote.

With one token, splitting columns into heads moves nothing: what stores keys and values, and what
asks with queries, finds them in the row, and turns them by the position on the way.
"""

from __future__ import annotations

from engine.kernels.decode_attention import suits
from engine.ops.cached_heads import shape_of
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms


def written_heads(terms: Terms, written: Term) -> Term | None:
    """Rows of one token turned, or taken out of a longer row, as they are written."""
    cache, rows, position = written.inputs
    if len(rows.shape) != 3 or rows.shape[1] > 1:
        return None
    heads, angles = _unturned(rows, position)
    if not angles and heads.op != "strided":
        return None
    row, start = _row(terms, heads)
    return terms.make("write_heads", [cache, row, position, *angles], start=start)


def decoded_heads(terms: Terms, attention: Term) -> Term | None:
    """Attention of one token whose queries are turned first."""
    q, k, v, position = attention.inputs
    heads, angles = _unturned(q, position)
    row, start = _row(terms, heads)
    shape = shape_of(q.shape[0], k.shape, attention.attrs["scale"])
    if q.shape[1] > 1 or not angles or q.shape[2] % 8 or start % 4:
        return None
    if not suits(shape, terms.facts):
        return None
    result = terms.make(
        "decode_attention",
        [row, k, v, position, *angles],
        heads=q.shape[0],
        start=start,
        scale=attention.attrs["scale"],
    )
    return terms.make("reshape", [result], shape=attention.shape)


def _unturned(value: Term, position: Term) -> tuple[Term, tuple[Term, ...]]:
    """What rotary positions turned, and their cos and sin; the value itself if they did not."""
    turned = value.op == "rope" and value.inputs[3:] == (position,) and not value.attrs["inverse"]
    return (value.inputs[0], value.inputs[1:3]) if turned else (value, ())


def _row(terms: Terms, heads: Term) -> tuple[Term, int]:
    """The row in which [heads, 1, width] lie side by side, and the first column."""
    count, _, width = heads.shape
    source, start = heads, 0
    if heads.op == "strided":
        across, _, along = heads.attrs["strides"]
        if (count == 1 or across == width) and (width == 1 or along == 1):
            source, start = heads.inputs[0], heads.attrs["start"]
    return terms.make("reshape", [source], shape=(1, source.type.size)), start
