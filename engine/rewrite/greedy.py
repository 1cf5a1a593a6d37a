"""The greedy engine: rules are applied where they do not raise the cost, until none applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from engine.op import Op, definition
from engine.rewrite.rules import Rule
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms

MAX_PASSES = 100
"""Far beyond what any graph needs: every rule shortens or removes something."""


@dataclass(frozen=True)
class Applied:
    """One application of a rule; costs are estimated nanoseconds of the whole graph."""

    rule: str
    node: str
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"{self.rule:<20} {self.node:<40} {self.before / 1e3:>10.1f} "
            f"-> {self.after / 1e3:.1f} us"
        )


def apply_rules(terms: Terms, rules: Iterable[Rule]) -> list[Applied]:
    """Apply rules to a fixpoint, stage after stage; what was done, in order."""
    rules = tuple(rules)
    trace: list[Applied] = []
    total = terms.total()
    for stage in sorted({rule.stage for rule in rules}):
        by_op = _by_op(tuple(rule for rule in rules if rule.stage <= stage))
        for _ in range(MAX_PASSES):
            before = len(trace)
            for term in terms.live():
                total = _rewrite(terms, term, by_op, trace, total)
            if len(trace) == before:
                break
    return trace


def _rewrite(
    terms: Terms,
    term: Term,
    rules_of: Callable[[str], tuple[Rule, ...]],
    trace: list[Applied],
    total: float,
) -> float:
    """Apply rules to one term and to what replaces it; the new total."""
    while term.live and not term.is_source:
        accepted = _first_accepted(terms, term, rules_of(term.op))
        if accepted is None:
            break
        rule, replacements, change = accepted
        merged = terms.replace(replacements)
        after = terms.total() if merged else total + change
        trace.append(Applied(rule.name, str(term), total, after))
        total = after
        term = replacements.get(term, term)
    return total


def _first_accepted(
    terms: Terms, term: Term, rules: Iterable[Rule]
) -> tuple[Rule, Mapping[Term, Term], float] | None:
    for rule in rules:
        for replacements in candidates(terms, rule, term):
            change = terms.change(replacements)
            if change < 0 or (change == 0 and not rule.strict):
                return rule, replacements, change
    return None


def candidates(terms: Terms, rule: Rule, term: Term) -> Iterator[Mapping[Term, Term]]:
    """What a rule could replace at a term."""
    for pattern in rule.patterns:
        matched = pattern.match(term)
        if matched is None:
            continue
        terms.position = term.position
        built = rule.build(terms, *matched)
        if built is None:
            continue
        wanted = {term: built} if isinstance(built, Term) else built
        checked = {old: admissible(terms, old, new) for old, new in wanted.items()}
        result = {old: new for old, new in checked.items() if new is not None}
        if len(result) == len(wanted):
            yield result


def admissible(terms: Terms, old: Term, new: Term) -> Term | None:
    """`new` as it may stand for `old`: gradients keep storage that nothing else has."""
    if new is old or type(definition(old.op)).extras is not Op.extras:
        # Further results are read from the op that makes them.
        return None
    if new.storage.owner and not old.owner and old.storage is not new.storage:
        return None
    return terms.owned(new, old.owner)


def _by_op(rules: tuple[Rule, ...]) -> Callable[[str], tuple[Rule, ...]]:
    known: dict[str, tuple[Rule, ...]] = {}

    def rules_of(name: str) -> tuple[Rule, ...]:
        if name not in known:
            known[name] = tuple(
                rule for rule in rules if any(not p.ops or name in p.ops for p in rule.patterns)
            )
        return known[name]

    return rules_of
