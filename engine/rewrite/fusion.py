"""Pointwise programs: absorbing a producer into the kernel that uses it.

A pointwise term is a program over its operands; a matrix product's epilogue is one whose first
operand is the product. Absorbing replaces an operand by the program that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.op import definition
from engine.ops.epilogue import operand_kind
from engine.ops.pointwise import Pointwise
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms

MAX_OPERANDS = 7
"""Operands of a fused kernel, so that with its result it binds at most 8 buffers."""

PRODUCTS = ("matmul", "conv2d", "conv2d_input_grad")
"""Ops of two operands that take an epilogue."""

PRODUCT = "product"

Operand = Term | str
Step = tuple[str, dict[str, Any], tuple[int, ...]]


@dataclass(frozen=True)
class Program:
    """Steps over operands; a step's arguments count the operands first, then earlier steps."""

    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]


def program_of(term: Term) -> Program:
    """The program of a pointwise term or of a product's epilogue, each operand listed once."""
    if term.op in PRODUCTS:
        return Program((PRODUCT, *term.inputs[2:]), tuple(term.attrs["epilogue"]))
    steps: tuple[Step, ...] = ((term.op, dict(term.attrs), tuple(range(len(term.inputs)))),)
    if term.op == "fused":
        steps = tuple(term.attrs["steps"])
    operands = tuple(dict.fromkeys(term.inputs))
    places = [operands.index(value) for value in term.inputs]
    return Program(operands, renumbered(steps, len(term.inputs), places, len(operands)))


def absorb(terms: Terms, user: Term, value: Term, seen: Term | None = None) -> Term | None:
    """`user` computing its operand `value` itself; `seen` is what the operand is a view of.

    A pointwise producer joins a pointwise program or the epilogue of a product; a product takes
    the pointwise `user` as its epilogue. None where shapes or bindings do not allow it.
    """
    producer = value if seen is None else seen
    if value.shape != user.shape or (user.op in PRODUCTS and value in user.inputs[:2]):
        return None
    outer, inner = program_of(user), program_of(producer)
    place = outer.operands.index(value)
    product = producer if producer.op in PRODUCTS else user
    # With a product inside, everything is seen in the product's shape.
    shape = product.shape
    if _repeats(outer if shape != user.shape else inner if shape != producer.shape else None):
        return None
    own: list[Operand] = []
    for operand, old in [
        *((o, producer.shape) for o in inner.operands),
        *((o, user.shape) for k, o in enumerate(outer.operands) if k != place),
    ]:
        moved = operand if isinstance(operand, str) else seen_in(terms, operand, old, shape)
        if moved is None:
            return None
        own.append(moved)
    operands = tuple(dict.fromkeys(own))
    if PRODUCT in operands:
        operands = (PRODUCT, *(o for o in operands if o != PRODUCT))
    if len(operands) + (product.op in PRODUCTS) > MAX_OPERANDS:
        return None
    inner_places = [operands.index(o) for o in own[: len(inner.operands)]]
    steps = renumbered(inner.steps, len(inner.operands), inner_places, len(operands))
    made = len(operands) + len(steps) - 1 if steps else inner_places[-1]
    outer_places = [operands.index(o) for o in own[len(inner.operands) :]]
    outer_places.insert(place, made)
    steps += renumbered(outer.steps, len(outer.operands), outer_places, len(operands) + len(steps))
    result = _build(terms, product, operands, steps)
    if result is None or result.shape == user.shape:
        return result
    return terms.make("reshape", [result], shape=user.shape)


def recomputed(terms: Terms, value: Term) -> dict[Term, Term] | None:
    """A pointwise value computed by each of its readers, if all of them can."""
    # On a CPU arithmetic costs more than a launch.
    if terms.facts.is_cpu or value.pins or len(value.users) < 2:
        return None
    replacements: dict[Term, Term] = {}
    for user in value.users:
        if user.op not in PRODUCTS and not isinstance(definition(user.op), Pointwise):
            return None
        made = absorb(terms, user, value)
        if made is None:
            return None
        replacements[user] = made
    return replacements


def _build(
    terms: Terms, product: Term, operands: tuple[Operand, ...], steps: tuple[Step, ...]
) -> Term | None:
    rest = [o for o in operands if isinstance(o, Term)]
    if product.op not in PRODUCTS:
        return terms.make("fused", rest, steps=steps)
    if any(operand_kind(o.shape, product.shape) is None for o in rest):
        return None
    attrs = {**product.attrs, "epilogue": steps}
    return terms.make(product.op, [*product.inputs[:2], *rest], **attrs)


def _repeats(program: Program | None) -> bool:
    """Whether a step broadcasts to a shape of its own, which no other view would have."""
    return program is not None and any(op == "expand" for op, _, _ in program.steps)


def renumbered(
    steps: tuple[Step, ...], operands: int, places: list[int], base: int
) -> tuple[Step, ...]:
    """Steps with operand k found at `places[k]` and step j's result at `base + j`."""
    index = [*places, *range(base, base + len(steps))]
    assert len(places) == operands
    return tuple((op, attrs, tuple(index[a] for a in own)) for op, attrs, own in steps)


def seen_in(terms: Terms, operand: Term, old: tuple[int, ...], new: tuple[int, ...]) -> Term | None:
    """An operand broadcast to shape `old`, as an operand broadcast to the same elements as `new`.

    Only whole tensors, scalars and rows can be seen in another shape.
    """
    if old == new:
        return operand
    size = operand.type.size
    if operand.shape == old:
        return terms.make("reshape", [operand], shape=new)
    if size == 1:
        return operand if operand.shape == (1,) else terms.make("reshape", [operand], shape=(1,))
    if size == operand.shape[-1] == new[-1]:
        row = (size,)
        return operand if operand.shape == row else terms.make("reshape", [operand], shape=row)
    return None
