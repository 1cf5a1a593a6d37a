"""Choosing one term of each class of equal terms, so that the whole graph is cheap.

Exact extraction with shared operands is NP-hard. A bottom-up pass finds for each class the choice
that is cheapest if nothing outside it were computed; then choices are revised one at a time as
long as the exact cost of the whole graph falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from engine.rewrite.term import Term, topological
from engine.rewrite.terms import Terms

Choice = dict[int, int]
"""From class to the number of the term chosen for it."""


def extract(terms: Terms, known: Sequence[Term], classes: Sequence[int]) -> Terms:
    """Terms equal to those of `terms`, chosen among `known`, whose classes are given by number."""
    return _Extraction(terms, known, classes).result()


class _Extraction:
    def __init__(self, terms: Terms, known: Sequence[Term], classes: Sequence[int]) -> None:
        self._terms, self._known = terms, known
        self._class = dict(zip(known, classes, strict=True))
        self._members: dict[int, list[int]] = {}
        self._operands: list[list[int]] = []
        listed: set[tuple[object, ...]] = set()
        for number, term in enumerate(known):
            operands = [self._class[value] for value in term.inputs]
            self._operands.append(list(dict.fromkeys(operands)))
            key = (term.op, term.key[1], term.owner, *operands)
            if key not in listed:
                listed.add(key)
                self._members.setdefault(classes[number], []).append(number)
        self._roots = list(dict.fromkeys(self._class[root] for root in terms.values()))

    def result(self) -> Terms:
        """The cheapest selection found."""
        start = self._bottom_up()
        live = topological(self._terms.values())
        original = {self._class[term]: self._number_of(term) for term in live}
        if self._cost(original) < self._cost(start):
            start |= original
        choice = self._revised(start)
        return self._terms.rebuilt(
            lambda term: self._known[choice[self._class[term]]] if term in self._class else term
        )

    def _number_of(self, term: Term) -> int:
        wanted = (term.op, term.key[1], term.owner, *(self._class[v] for v in term.inputs))
        for number in self._members[self._class[term]]:
            found = self._known[number]
            own = (self._class[value] for value in found.inputs)
            if (found.op, found.key[1], found.owner, *own) == wanted:
                return number
        raise AssertionError("every term is a member of its class")

    def _bottom_up(self) -> Choice:
        """Per class the choice whose own terms, each counted once, cost least."""
        choice: Choice = {}
        below: dict[int, dict[int, float]] = {}
        totals: dict[int, float] = {}
        changed = True
        while changed:
            changed = False
            for name, members in self._members.items():
                for number in members:
                    needed = self._needed(name, number, below)
                    if needed is None:
                        continue
                    total = sum(needed.values())
                    if total < totals.get(name, inf):
                        choice[name], below[name], totals[name] = number, needed, total
                        changed = True
        return choice

    def _needed(
        self, name: int, number: int, below: Mapping[int, Mapping[int, float]]
    ) -> dict[int, float] | None:
        """Classes that a choice computes, with their costs; None while unknown or cyclic."""
        needed: dict[int, float] = {}
        for operand in self._operands[number]:
            if operand not in below or name in below[operand]:
                return None
            needed |= below[operand]
        needed[name] = self._known[number].cost
        return needed

    def _cost(self, choice: Mapping[int, int]) -> float:
        """Exact cost of the roots under a choice; infinite if it is cyclic."""
        done: dict[int, bool] = {}
        total = 0.0
        stack = list(self._roots)
        while stack:
            name = stack[-1]
            if done.get(name):
                stack.pop()
            elif name in done:
                done[name] = True
                total += self._known[choice[name]].cost
                stack.pop()
            else:
                done[name] = False
                for operand in self._operands[choice[name]]:
                    if done.get(operand) is False:
                        return inf
                    if operand not in done:
                        stack.append(operand)
        return total

    def _revised(self, choice: Choice) -> Choice:
        best = self._cost(choice)
        improved = True
        while improved:
            improved = False
            for name, members in self._members.items():
                for number in members:
                    if len(members) == 1 or number == choice[name]:
                        continue
                    tried = {**choice, name: number}
                    cost = self._cost(tried)
                    if cost < best:
                        choice, best, improved = tried, cost, True
        return choice
