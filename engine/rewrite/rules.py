"""The table of rewriting rules, shared by the greedy engine and by equality saturation.

A rule is one or more patterns and a pure function that builds the replacement of what a pattern
matched, or None where the rule does not apply. Common subexpressions and dead code need no rule:
see `engine.rewrite.terms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.op import definitions
from engine.ops.activated_norm import NORMS
from engine.ops.moved_product import PRODUCTS as MOVABLE
from engine.ops.prologue import ROWS
from engine.rewrite.builders import (
    absorbed,
    activated_norm,
    affine_of_nothing,
    affine_twice,
    copied,
    expanded_operand,
    expanded_scalar,
    folded,
    gated_product,
    group_norm_silu,
    moved_twice,
    negative_added,
    norm_gradient_added,
    nothing_moved,
    product_of_windows,
    silu,
    sum_scaled,
    transposed_operand,
    transposed_result,
    viewed_twice,
)
from engine.rewrite.cached import decoded_heads, written_heads
from engine.rewrite.fusion import PRODUCTS, recomputed
from engine.rewrite.heads import joined_and_turned, packed_attention, turned_as_read
from engine.rewrite.moved import followed_product, moved_product
from engine.rewrite.moves import MOVES
from engine.rewrite.packing import packed_gates, packed_siblings
from engine.rewrite.prologue import computed_rows
from engine.rewrite.term import Term

MAX_ARITY = 7
MOVED = ("permute", "slice")
"""Moves that a product may do as it writes."""
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
    stage: int = 1
    """Rules of later stages are applied where those of earlier ones no longer are, since they hide
    ops that those look for. What rules of stage 0 build is differentiable.
    """


def op(*names: str, at: Mapping[int, Pattern] | None = None) -> Pattern:
    """A pattern by op names."""
    return Pattern(names, at or {})


def _pointwise_ops() -> tuple[str, ...]:
    from engine.ops.pointwise import Pointwise

    return tuple(name for name, known in definitions().items() if isinstance(known, Pointwise))


def _binary_ops() -> tuple[str, ...]:
    from engine.ops.pointwise import Binary

    return tuple(name for name, known in definitions().items() if isinstance(known, Binary))


def _unary_ops() -> tuple[str, ...]:
    from engine.ops.pointwise import Affine, Unary

    return tuple(name for name, known in definitions().items() if isinstance(known, Unary | Affine))


def _either(outer: Pattern, *inner: Pattern) -> tuple[Pattern, ...]:
    """`inner` at the first or at the second place of `outer`."""
    return tuple(Pattern(outer.ops, {place: p}) for p in inner for place in (0, 1))


def _anywhere(ops: tuple[str, ...], *inner: Pattern) -> tuple[Pattern, ...]:
    return tuple(Pattern(ops, {place: p}) for p in inner for place in range(MAX_ARITY))


def table() -> tuple[Rule, ...]:
    """All rules, in the order in which the greedy engine tries them."""
    pointwise, binary = _pointwise_ops(), _binary_ops()
    moves, product, written = op(*MOVES), op(*PRODUCTS), op(*MOVABLE)
    norm_grads = op("layer_norm_grad", "rms_norm_grad", "group_norm_grad")
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
        Rule(
            "norm gradient added",
            _either(op("add"), norm_grads, op("reshape", at={0: norm_grads})),
            norm_gradient_added,
            strict=True,
        ),
        Rule("transposed operand", _either(op("matmul"), op("permute")), transposed_operand),
        Rule("transposed product", (op("permute", at={0: op("matmul")}),), transposed_result),
        Rule(
            "product of windows",
            (op("matmul", at={0: op("unfold")}),),
            product_of_windows,
            strict=True,
            local=False,
        ),
        Rule(
            "attention by column",
            (op("attention"),),
            packed_attention,
            strict=True,
            local=False,
            stage=0,
        ),
        Rule(
            "packed gate and up",
            _either(op("mul"), op("silu", at={0: op("matmul")})),
            packed_gates,
            strict=True,
            local=False,
            stage=0,
        ),
        Rule(
            "joined and turned",
            (op("rope_columns", at={0: op("join_heads")}),),
            joined_and_turned,
        ),
        Rule("packed siblings", (op("matmul"),), packed_siblings, strict=True, local=False),
        Rule(
            "gated product",
            (op("swiglu_concat", at={0: op("packed_matmul")}),),
            gated_product,
            strict=True,
            local=False,
            stage=2,
        ),
        Rule(
            "activated norm",
            (op(*_unary_ops(), at={0: op(*NORMS)}),),
            activated_norm,
            strict=True,
            local=False,
            stage=2,
        ),
        Rule(
            "epilogue",
            _anywhere(pointwise, product, op("reshape", at={0: product})),
            absorbed,
            strict=True,
            stage=2,
        ),
        Rule(
            "pointwise chain",
            _anywhere(
                (*pointwise, *PRODUCTS), op(*pointwise), op("reshape", at={0: op(*pointwise)})
            ),
            absorbed,
            strict=True,
            local=False,
            stage=2,
        ),
        Rule("recomputed value", (op(*pointwise),), recomputed, strict=True, local=False, stage=3),
        Rule(
            "turned as read",
            (op("packed_attention"),),
            turned_as_read,
            strict=True,
            local=False,
            stage=3,
        ),
        Rule(
            "written heads", (op("write_rows"),), written_heads, strict=True, local=False, stage=3
        ),
        Rule(
            "decoded heads",
            (op("cached_attention"),),
            decoded_heads,
            strict=True,
            local=False,
            stage=3,
        ),
        Rule("computed rows", (op(*ROWS),), computed_rows, strict=True, local=False, stage=3),
        Rule(
            "moved product",
            (op(*MOVED, at={0: written}), op(*MOVED, at={0: op("reshape", at={0: written})})),
            moved_product,
            strict=True,
            local=False,
            stage=4,
        ),
        Rule(
            "followed product",
            _anywhere(pointwise, op("moved_product"), op("reshape", at={0: op("moved_product")})),
            followed_product,
            strict=True,
            local=False,
            stage=4,
        ),
    )
