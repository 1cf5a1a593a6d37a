"""Products whose result is moved as they write it, instead of by a launch after them."""

from __future__ import annotations

from math import prod

from engine.kernels.moved import Moved
from engine.kernels.operands import is_wide
from engine.rewrite.fusion import MAX_OPERANDS, program_of, renumbered
from engine.rewrite.term import Term, topological
from engine.rewrite.terms import Terms


def moved_product(terms: Terms, moved: Term, *read: Term) -> Term | None:
    """A product, perhaps seen through a reshape, permuted or cut to rows that follow each other,
    if nothing else reads it.
    """
    product, seen = read[-1], read[0].shape
    if any(value.pins or len(value.users) > 1 for value in read):
        return None
    start = 0
    if moved.op == "slice":
        axis = moved.attrs["axis"]
        if prod(seen[:axis]) > 1:
            return None
        start, seen = moved.attrs["start"] * prod(seen[axis + 1 :]), moved.shape
    axes = moved.attrs.get("axes", tuple(range(len(seen))))
    if not (is_wide(product.shape[-1]) and Moved.of(seen, axes, start).suits):
        return None
    return terms.make(
        "moved_product",
        product.inputs,
        product=(product.op, product.attrs),
        given=len(product.inputs),
        shape=seen,
        axes=axes,
        start=start,
        after=(),
    )


def followed_product(terms: Terms, user: Term, *read: Term) -> Term | None:
    """A pointwise function of a moved product, perhaps seen through a reshape, and of values like
    the result, as the product writes it.
    """
    value, product = read[0], read[-1]
    if any(term.pins or len(term.users) > 1 for term in read):
        return None
    program = program_of(user)
    others = [operand for operand in program.operands if operand is not value]
    count = len(product.inputs) + len(others)
    if value.shape != user.shape or product.attrs["after"] or count > MAX_OPERANDS:
        return None
    if any(step == "expand" for step, _, _ in program.steps):
        return None
    seen: list[Term] = []
    for other in others:
        if not isinstance(other, Term) or (other.shape != user.shape and other.type.size > 1):
            return None
        # What waits for all others should not keep them waiting.
        if _below(other) > _below(product):
            return None
        shape = product.shape if other.shape == user.shape else (1,)
        seen.append(other if other.shape == shape else terms.make("reshape", [other], shape=shape))
    places = [others.index(o) + 1 if o is not value else 0 for o in program.operands]
    steps = renumbered(program.steps, len(places), places, len(places))
    result = terms.make(product.op, [*product.inputs, *seen], **{**product.attrs, "after": steps})
    same = result.shape == user.shape
    return result if same else terms.make("reshape", [result], shape=user.shape)


def _below(term: Term) -> int:
    """Values that a term depends on."""
    return len(topological([term]))
