"""The table of rewriting rules, shared by the greedy engine and by equality saturation.

A rule is one or more patterns and a pure function that builds the replacement of what a pattern
matched, or None where the rule does not apply. Common subexpressions and dead code need no rule:
see `engine.rewrite.terms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.graph import EXTRA
from engine.op import Op, definition, definitions
from engine.rewrite.fusion import PRODUCTS, absorb
from engine.rewrite.moves import MOVES, compose
from engine.rewrite.packing import packed_gates, packed_siblings
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms

MAX_ARITY = 7
STILL = ("pad", "reshape", "expand", "stop_gradient")
"""Ops beside the moves that may change nothing."""

Replacement = Term | Mapping[Term, Term] | None


@dataclass(frozen=True)
class Pattern:
    """A term whose op is one of `ops` and whose operands at some places match patterns.

    Without ops, any computed term matches.
    """

    ops: tuple[str, ...] = ()
    operands: Mapping[int, Pattern] = field(default_factory=dict)

    def match(self, term: Term) -> tuple[Term, ...] | None:
        """The term and the operands that patterns name, in pre-order."""
        if self.ops and term.op not in self.ops:
            return None
        found = [term]
        for place, pattern in self.operands.items():
            # What is owned must stay: nothing may be built from its inside.
            if place >= len(term.inputs) or term.inputs[place].owner:
                return None
            inner = pattern.match(term.inputs[place])
            if inner is None:
                return None
            found += inner
        return tuple(found)


@dataclass(frozen=True)
class Rule:
    """`build(terms, *matched)` replaces the first term matched, or several at once.

    A `strict` rule must lower the cost, others must not raise it. Rules that are not `local` look
    at more than what they match (users, neighbours in memory) or have too many partial results to
    keep all of them; equality saturation leaves those to the greedy engine.
    """

    name: str
    patterns: tuple[Pattern, ...]
    build: Callable[..., Replacement]
    strict: bool = False
    local: bool = True
    late: bool = False
    """Applied only where no early rule applies: it hides ops that those look for."""


def op(*names: str, at: Mapping[int, Pattern] | None = None) -> Pattern:
    """A pattern by op names."""
    return Pattern(names, at or {})


def moved_twice(terms: Terms, outer: Term, *inner: Term) -> Term | None:
    """Permute, slice or strided read of another one, perhaps through a reshape: one read."""
    return compose(terms, outer, *inner)


def viewed_twice(terms: Terms, outer: Term, inner: Term) -> Term:
    """A reshape of a reshape."""
    x = inner.inputs[0]
    return x if x.shape == outer.shape else terms.make("reshape", [x], shape=outer.shape)


def expanded_scalar(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """A view of a repeated scalar is that scalar repeated."""
    x = inner.inputs[0]
    if x.type.size > 1:
        return None
    scalar = terms.make("reshape", [x], shape=(1,) * len(outer.shape))
    return terms.make("expand", [scalar], shape=outer.shape)


def nothing_moved(terms: Terms, term: Term) -> Term | None:
    """A move that changes nothing, or only the shape."""
    x = term.inputs[0]
    if term.op == "stop_gradient":
        return x
    if term.op in ("permute", "slice", "strided"):
        simple = compose(terms, term)
        return simple if simple is x or (simple is not None and simple.is_view) else None
    if term.op == "pad" and not term.attrs["before"] and not term.attrs["after"]:
        return x
    return x if term.op in ("reshape", "expand") and term.shape == x.shape else None


def copied(terms: Terms, term: Term) -> Term:
    """A copy that needs no storage of its own."""
    return term.inputs[0]


def affine_twice(terms: Terms, outer: Term, inner: Term) -> Term:
    """Scale and shift of a scale and shift; covers the negative of a negative."""
    scale = outer.attrs["scale"] * inner.attrs["scale"]
    shift = outer.attrs["scale"] * inner.attrs["shift"] + outer.attrs["shift"]
    return terms.make("affine", inner.inputs, scale=scale, shift=shift)


def affine_of_nothing(terms: Terms, term: Term) -> Term | None:
    """1 x + 0."""
    return term.inputs[0] if (term.attrs["scale"], term.attrs["shift"]) == (1.0, 0.0) else None


def sum_scaled(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """A scaled sum."""
    if outer.attrs["shift"] != 0.0:
        return None
    return terms.make("sum", inner.inputs, scale=inner.attrs["scale"] * outer.attrs["scale"])


def negative_added(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """Adding or subtracting a negative."""
    place = outer.inputs.index(inner)
    if (inner.attrs["scale"], inner.attrs["shift"]) != (-1.0, 0.0):
        return None
    if outer.op == "sub" and place == 0:
        return None
    other = outer.inputs[1 - place]
    return terms.make("add" if outer.op == "sub" else "sub", [other, inner.inputs[0]])


def expanded_operand(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """Broadcasting is done by the op that needs it."""
    inputs = [inner.inputs[0] if value is inner else value for value in outer.inputs]
    if np.broadcast_shapes(*(value.shape for value in inputs)) != outer.shape:
        return None
    return terms.make(outer.op, inputs, **outer.attrs)


def silu(terms: Terms, product: Term, gate: Term) -> Term | None:
    """A value times its own sigmoid."""
    x = product.inputs[1 - product.inputs.index(gate)]
    return terms.make("silu", [x]) if gate.inputs[0] is x else None


def group_norm_silu(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """SiLU of a group normalisation."""
    if inner.attrs["silu"]:
        return None
    return terms.make("group_norm", inner.inputs, **{**inner.attrs, "silu": True})


def transposed_operand(terms: Terms, product: Term, moved: Term) -> Term | None:
    """A product of a matrix whose last two axes were exchanged."""
    axes = tuple(moved.attrs["axes"])
    if axes != (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2):
        return None
    inputs, attrs = list(product.inputs), dict(product.attrs)
    for place, flag in enumerate(("transpose_a", "transpose_b")):
        if inputs[place] is moved:
            inputs[place] = moved.inputs[0]
            attrs[flag] = not attrs[flag]
    return terms.make("matmul", inputs, **attrs)


def transposed_result(terms: Terms, moved: Term, product: Term) -> Term | None:
    """The transpose of a product is the product of the transposes."""
    axes = tuple(moved.attrs["axes"])
    if axes != (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2) or len(product.inputs) > 2:
        return None
    attrs = dict(product.attrs)
    ta, tb = attrs["transpose_a"], attrs["transpose_b"]
    attrs |= {"transpose_a": not tb, "transpose_b": not ta}
    return terms.make("matmul", [product.inputs[1], product.inputs[0]], **attrs)


def folded(terms: Terms, term: Term) -> Term | None:
    """An op on constants, where the result is not larger than they are."""
    if any(value.op not in ("constant", "reshape") for value in term.inputs):
        return None
    roots = [value.storage for value in term.inputs]
    if not roots or any(root.op != "constant" for root in roots):
        return None
    made = definition(term.op)
    # A launch with further results serves them too; a view costs nothing as it is.
    if made.view or made.effect or term.op == EXTRA or type(made).extras is not Op.extras:
        return None
    if term.type.dtype != "f32" or term.type.size > max(value.type.size for value in term.inputs):
        return None
    pairs = zip(roots, term.inputs, strict=True)
    values = [root.attrs["value"].reshape(value.shape) for root, value in pairs]
    operands = [v.astype(np.float64) if v.dtype == np.float32 else v for v in values]
    return terms.constant(made.reference(operands, term.attrs))


def absorbed(terms: Terms, user: Term, value: Term, *producer: Term) -> Term | None:
    """A producer computed by the kernel that uses it, perhaps seen through a reshape."""
    return absorb(terms, user, value, *producer)


def _pointwise_ops() -> tuple[str, ...]:
    from engine.ops.pointwise import Pointwise

    return tuple(name for name, known in definitions().items() if isinstance(known, Pointwise))


def _binary_ops() -> tuple[str, ...]:
    from engine.ops.pointwise import Binary

    return tuple(name for name, known in definitions().items() if isinstance(known, Binary))


def _either(outer: Pattern, *inner: Pattern) -> tuple[Pattern, ...]:
    """`inner` at the first or at the second place of `outer`."""
    return tuple(Pattern(outer.ops, {place: p}) for p in inner for place in (0, 1))


def _anywhere(ops: tuple[str, ...], *inner: Pattern) -> tuple[Pattern, ...]:
    return tuple(Pattern(ops, {place: p}) for p in inner for place in range(MAX_ARITY))


def table() -> tuple[Rule, ...]:
    """All rules, in the order in which the greedy engine tries them."""
    pointwise, binary = _pointwise_ops(), _binary_ops()
    moves, product = op(*MOVES), op(*PRODUCTS)
    through_view = op(*MOVES, at={0: op("reshape", at={0: moves})})
    return (
        Rule("constant folding", (Pattern(),), folded),
        Rule("reshape of reshape", (op("reshape", at={0: op("reshape")}),), viewed_twice),
        Rule("view of scalar", (op("reshape", at={0: op("expand")}),), expanded_scalar),
        Rule("move of move", (op(*MOVES, at={0: moves}), through_view), moved_twice),
        Rule("no-op move", (op(*MOVES, *STILL),), nothing_moved),
        Rule("needless copy", (op("copy"),), copied),
        Rule("affine of affine", (op("affine", at={0: op("affine")}),), affine_twice),
        Rule("no-op affine", (op("affine"),), affine_of_nothing),
        Rule("scaled sum", (op("affine", at={0: op("sum")}),), sum_scaled),
        Rule("negative added", _either(op("add", "sub"), op("affine")), negative_added),
        Rule("broadcast operand", _either(op(*binary), op("expand")), expanded_operand),
        Rule("silu", _either(op("mul"), op("sigmoid")), silu),
        Rule("group norm, silu", (op("silu", at={0: op("group_norm")}),), group_norm_silu),
        Rule("transposed operand", _either(op("matmul"), op("permute")), transposed_operand),
        Rule("transposed product", (op("permute", at={0: op("matmul")}),), transposed_result),
        Rule(
            "packed gate and up",
            _either(op("mul"), op("silu", at={0: op("matmul")})),
            packed_gates,
            strict=True,
            local=False,
        ),
        Rule("packed siblings", (op("matmul"),), packed_siblings, strict=True, local=False),
        Rule(
            "epilogue",
            _anywhere(pointwise, product, op("reshape", at={0: product})),
            absorbed,
            strict=True,
            late=True,
        ),
        Rule(
            "pointwise chain",
            _anywhere(
                (*pointwise, *PRODUCTS), op(*pointwise), op("reshape", at={0: op(*pointwise)})
            ),
            absorbed,
            strict=True,
            local=False,
            late=True,
        ),
    )
