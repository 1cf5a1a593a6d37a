"""Sibling products as one wider product over parameters that lie next to each other in memory.

Parameters keep their names, gradients and optimiser state: a packed product binds a run of the
pack that the memory planner lays out anyway (`engine.ops.packed`). So only trainable or only
frozen [out, in] weights that were declared one after another, with sizes of whole alignment
units, can be packed; where gradients need the parts, copying them out costs more and the cost
says no.
"""

from __future__ import annotations

from engine.memory import ALIGNMENT, pack_runs
from engine.rewrite.moves import MOVES, compose
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms


def packed_siblings(terms: Terms, product: Term) -> dict[Term, Term] | None:
    """All parts of a run of products of one input, as slices of one product."""
    if not _packable(product):
        return None
    family = [user for user in product.inputs[0].users if _packable(user, product.inputs[0])]
    if len(family) < 2:
        return None
    parts = _run(terms, product, family)
    if len(parts) < 2:
        return None
    whole = packed(terms, parts)
    replacements: dict[Term, Term] = {}
    start = 0
    for part in parts:
        stop = start + part.shape[1]
        piece = terms.make("slice", [whole], axis=1, start=start, stop=stop)
        replacements |= _readers(terms, part, piece) or {part: piece}
        start = stop
    return replacements


def packed_gates(terms: Terms, gated: Term, silu: Term, gate: Term) -> Term | None:
    """silu(gate) up for two products of one input, as one product and one gated activation."""
    up = gated.inputs[1 - gated.inputs.index(silu)]
    if not (_packable(gate) and _packable(up, gate.inputs[0])):
        return None
    if _run(terms, gate, [gate, up]) != [gate, up]:
        return None
    return terms.make("swiglu_concat", [packed(terms, [gate, up])])


def neighbours(terms: Terms, parts: list[Term]) -> list[Term]:
    """Different products of one input in the order in which their weights lie next to each other;
    nothing if they do not.
    """
    x = parts[0].inputs[0] if parts[0].inputs else None
    if len(set(parts)) < len(parts) or not all(_packable(part, x) for part in parts):
        return []
    order = _run(terms, parts[0], parts)
    return order if len(order) == len(parts) else []


def packed(terms: Terms, parts: list[Term]) -> Term:
    """One product for several of the same input."""
    return terms.make("packed_matmul", [parts[0].inputs[0], *(part.inputs[1] for part in parts)])


def _packable(term: Term, x: Term | None = None) -> bool:
    if term.op != "matmul" or len(term.inputs) != 2 or term.owner or term.attrs["epilogue"]:
        return False
    if term.attrs["transpose_a"] or not term.attrs["transpose_b"] or len(term.shape) != 2:
        return False
    return term.inputs[1].op == "parameter" and (x is None or term.inputs[0] is x)


def _run(terms: Terms, product: Term, family: list[Term]) -> list[Term]:
    """The longest stretch of neighbouring weights around that of `product`."""
    pack = terms.parameters(product.inputs[1].attrs["trainable"])
    sizes = [parameter.type.nbytes for parameter in pack]
    limit = min(terms.facts.max_binding_bytes, terms.facts.max_buffer_bytes)
    of_weight = {part.inputs[1]: part for part in family}
    at = pack.index(product.inputs[1])
    first, last = next(run for run in pack_runs(sizes, limit) if run[0] <= at < run[1])

    def joins(place: int) -> bool:
        return pack[place] in of_weight and sizes[place] % ALIGNMENT == 0

    start = stop = at
    while start > first and joins(start - 1) and joins(start):
        start -= 1
    while stop + 1 < last and joins(stop) and joins(stop + 1):
        stop += 1
    return [of_weight[pack[place]] for place in range(start, stop + 1)]


def _readers(terms: Terms, part: Term, piece: Term) -> dict[Term, Term] | None:
    """What moves a part on, reading the whole directly; None unless that is all of its use."""
    replacements: dict[Term, Term] = {}
    readers = [(user, [piece]) for user in part.users]
    for user, chain in readers:
        if user.op == "reshape" and len(chain) == 1 and not user.pins:
            view = terms.make("reshape", [piece], shape=user.shape)
            readers += [(reader, [view, piece]) for reader in user.users]
            continue
        moved = compose(terms, user, *chain) if user.op in MOVES else None
        if moved is None:
            return None
        replacements[user] = moved
    return None if part.pins else replacements
