"""Rows that a product of few rows computes itself, instead of a launch before it."""

from __future__ import annotations

from engine.kernels.decode_attention import AT_ONCE, MERGING, slices
from engine.ops.cached_heads import shape_of
from engine.ops.prologue import PRODUCTS
from engine.rewrite.fusion import MAX_OPERANDS
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms
from engine.specialize import GEMV_ROWS

MERGED = 1 + len(MERGING)
"""What a product binds to merge slices of attention."""


def computed_rows(terms: Terms, rows: Term) -> dict[Term, Term] | None:
    """All products that read `rows`, perhaps through a view, if nothing else does."""
    # On a CPU a launch is cheap, and every workgroup would compute the rows again.
    if terms.facts.is_cpu or rows.pins or not _short(rows):
        return None
    given = MERGED if rows.op == "decode_attention" else len(rows.inputs)
    readers = [(user, rows) for user in rows.users]
    replacements: dict[Term, Term] = {}
    for user, seen in readers:
        if user.op == "reshape" and seen is rows and not user.pins:
            readers += [(reader, user) for reader in user.users]
            continue
        if not _takes(user, seen, given):
            return None
        replacements[user] = terms.make(
            "prologue",
            [*rows.inputs, *user.inputs[1:]],
            rows=(rows.op, rows.attrs),
            product=(user.op, user.attrs),
            given=len(rows.inputs),
        )
    return replacements


def _short(rows: Term) -> bool:
    """Whether the rows may be computed once for every four columns of the result."""
    if rows.op != "decode_attention":
        return True
    return slices(shape_of(rows.attrs["heads"], rows.inputs[1].shape, 1.0)) <= AT_ONCE


def _takes(product: Term, rows: Term, given: int) -> bool:
    """Whether a term is a product of few such rows with a matrix [n, k]."""
    if product.op not in PRODUCTS or rows in product.inputs[1:] or len(rows.shape) != 2:
        return False
    plain = not product.attrs.get("transpose_a") and product.attrs.get("transpose_b", True)
    # Packed weights are bound as one.
    others = len(product.inputs) - 1 if product.op == "matmul" else 1
    return bool(plain) and rows.shape[0] <= GEMV_ROWS and given + others <= MAX_OPERANDS
