"""Attention on the matrices that products write, instead of on tensors by head.

Models split the columns of a product into heads and move the heads to the front; behind attention
they move them back. Here attention reads and writes columns where they are, queries, keys and
values of one input come from one product if their weights are neighbours in memory, and rotary
positions turn all heads in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.graph import EXTRA
from engine.rewrite.choices import in_one_launch
from engine.rewrite.packing import neighbours, packed
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms

Angles = tuple[Term, ...]
"""Cos and sin [tokens, width / 2], or nothing for heads that are not turned."""


@dataclass(frozen=True)
class _Heads:
    """Queries, keys or values as columns of a matrix [images * tokens, heads * width]."""

    matrix: Term
    images: int
    count: int
    angles: Angles


def packed_attention(terms: Terms, attention: Term) -> dict[Term, Term] | None:
    """Attention whose operands were moved by head, and whose result is moved back."""
    parts = [_columns(terms, value) for value in attention.inputs]
    q, k, v = parts
    if q is None or k is None or v is None or len({part.images for part in (q, k, v)}) > 1:
        return None
    images, (heads, _, width) = q.images, attention.shape
    back = _moved_back(attention, images)
    if back is None:
        return None
    operands, places = _operands(terms, [q, k, v], width)
    result = terms.make(
        "packed_attention",
        operands,
        heads=heads // images,
        kv_heads=k.count,
        width=width,
        images=images,
        places=places,
        causal=attention.attrs["causal"],
        scale=attention.attrs["scale"],
    )
    return {user: terms.make("reshape", [result], shape=user.shape) for user in back}


def _replaceable(attention: Term) -> bool:
    """Whether only its result is read, by other terms."""
    return not attention.pins and all(user.op != EXTRA for user in attention.users)


def _instead(terms: Terms, old: Term, new: Term) -> dict[Term, Term]:
    """The users of a term reading another one."""
    return {
        user: terms.with_inputs(user, [new if value is old else value for value in user.inputs])
        for user in old.users
    }


def joined_and_turned(terms: Terms, turned: Term, joined: Term) -> Term | None:
    """Heads turned while they are put side by side."""
    if joined.attrs["turned"] or len(joined.inputs[0].shape) != 3:
        return None
    return terms.make(
        "join_heads", [*joined.inputs, *turned.inputs[1:]], **{**joined.attrs, **turned.attrs}
    )


def turned_as_read(terms: Terms, attention: Term) -> dict[Term, Term] | None:
    """Attention that turns queries and keys itself, in the products that make them.

    None where the device splits such a product along k: turning it then also finishes it.
    """
    # On a CPU keys would be turned for every four queries.
    if terms.facts.is_cpu or not _replaceable(attention):
        return None
    a, inputs, turned = attention.attrs, list(attention.inputs), []
    angles: set[Angles] = set()
    counts = (a["heads"], a["kv_heads"], a["kv_heads"])
    for name, (operand, column), count in zip("qkv", a["places"], counts, strict=True):
        value = attention.inputs[operand]
        if value.op != "rope_columns" or column >= value.attrs["turned"]:
            continue
        whole = column + count * a["width"] <= value.attrs["turned"] and name != "v"
        if value.attrs["inverse"] or not whole or not in_one_launch(terms, value.inputs[0]):
            return None
        inputs[operand] = value.inputs[0]
        angles.add(value.inputs[1:])
        turned.append(name)
    if len(angles) != 1 or a["width"] % 8:
        return None
    operands = [*inputs, *angles.pop()]
    made = terms.make("turned_attention", operands, **a, turned=tuple(turned))
    return _instead(terms, attention, made)


def _columns(terms: Terms, value: Term) -> _Heads | None:
    """What [images * heads, tokens, width] is made of, if heads are all that was moved."""
    angles: Angles = ()
    if value.op == "rope" and len(value.inputs) == 3 and not value.attrs["inverse"]:
        value, angles = value.inputs[0], value.inputs[1:]
    _, tokens, width = value.shape
    moved = value.inputs[0] if value.op == "reshape" else value
    if moved.op != "permute" or tuple(moved.attrs["axes"]) not in ((1, 0, 2), (0, 2, 1, 3)):
        return None
    source = moved.inputs[0]
    images = source.shape[0] if len(source.shape) == 4 else 1
    if source.shape[-3:] != (tokens, value.shape[0] // images, width):
        return None
    count = source.shape[-2]
    return _Heads(_matrix(terms, source, (images * tokens, count * width)), images, count, angles)


def _matrix(terms: Terms, source: Term, shape: tuple[int, int]) -> Term:
    """The tensor under any views as a matrix."""
    while source.op == "reshape":
        source = source.inputs[0]
    return source if source.shape == shape else terms.make("reshape", [source], shape=shape)


def _moved_back(attention: Term, images: int) -> list[Term] | None:
    """The terms that move the heads of a result back behind the tokens, if all users do that."""
    heads, queries, width = attention.shape
    split = (images, heads // images, queries, width)
    found: list[Term] = []
    for user in attention.users:
        if user.op == "reshape" and user.shape == split and not user.pins:
            found += user.users
        else:
            found.append(user)
    known = ((1, 0, 2), (0, 2, 1, 3)) if images == 1 else ((0, 2, 1, 3),)
    if attention.pins or not found:
        return None
    moves = all(user.op == "permute" and tuple(user.attrs["axes"]) in known for user in found)
    return found if moves else None


def _operands(
    terms: Terms, parts: Sequence[_Heads], width: int
) -> tuple[list[Term], tuple[tuple[int, int], ...]]:
    """Matrices for packed_attention, as few as possible, and where q, k and v lie in them."""
    groups = [[0, 1, 2]] if _run(terms, parts) else [[0], [1, 2]] if _run(terms, parts[1:]) else []
    groups = groups or [[0], [1], [2]]
    operands: list[Term] = []
    places: dict[int, tuple[int, int]] = {}
    for group in groups:
        own = {parts[k].matrix: k for k in group}
        order = _run(terms, [parts[k] for k in group]) if len(group) > 1 else list(own)
        column = 0
        for matrix in order:
            places[own[matrix]] = (len(operands), column)
            column += matrix.shape[1]
        whole = packed(terms, order) if len(group) > 1 else order[0]
        operands.append(_turned(terms, whole, [parts[own[matrix]] for matrix in order]))
    return operands, (places[0], places[1], places[2])


def _run(terms: Terms, parts: Sequence[_Heads]) -> list[Term]:
    """The matrices as neighbouring products in memory order, if their turned heads come first."""
    order = neighbours(terms, [part.matrix for part in parts])
    angles = [part.angles for matrix in order for part in parts if part.matrix is matrix]
    turned = [own for own in angles if own]
    leads = len(set(turned)) <= 1 and angles[: len(turned)] == turned
    return order if len(order) == len(parts) and leads else []


def _turned(terms: Terms, matrix: Term, parts: Sequence[_Heads]) -> Term:
    """The matrix with the leading heads turned that have angles."""
    turned = [part for part in parts if part.angles]
    if not turned:
        return matrix
    columns = sum(part.matrix.shape[1] for part in turned)
    inputs = [matrix, *turned[0].angles]
    return terms.make("rope_columns", inputs, turned=columns, inverse=False)
