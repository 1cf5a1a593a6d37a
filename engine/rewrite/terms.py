"""A graph while it is rewritten: shared terms that know their users, and what a change costs.

Equal expressions are one term (common subexpressions), and a term that no root needs is dead:
both rules of the classic table are properties of the representation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from engine.graph import SOURCES, Graph, Node, TensorType, reachable
from engine.lower import storage_root
from engine.op import definition
from engine.rewrite.cost import term_cost
from engine.rewrite.term import Key, Term, attribute_key, topological
from engine.specialize import DeviceFacts


class Terms:
    """All terms of one graph. `facts` prices them and bounds what one binding may cover."""

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts
        self.outputs: dict[str, Term] = {}
        self.gradients: dict[str, Term] = {}
        self.effects: list[Term] = []
        self.position = 0
        self._initializers: dict[str, Any] = {}
        self._sources: dict[str, Node] = {}
        self._table: dict[Key, Term] = {}
        self._merged: dict[Term, Term] = {}
        self._parameters: list[Term] = []

    @staticmethod
    def of(graph: Graph, facts: DeviceFacts) -> Terms:
        """The terms that a graph's roots need."""
        terms = Terms(facts)
        owners = {storage_root(node): name for name, node in graph.gradients.items()}
        owners |= {effect: f"effect {k}" for k, effect in enumerate(graph.effects)}
        mapped: dict[Node, Term] = {}
        for node in reachable(graph.roots()):
            terms.position = node.id
            if node.op in SOURCES:
                mapped[node] = terms._intern(node.op, (), node.attrs, node.type, "")
                terms._sources[node.name] = node
            else:
                inputs = [mapped[value] for value in node.inputs]
                mapped[node] = terms._intern(
                    node.op, tuple(inputs), node.attrs, node.type, owners.get(node, "")
                )
        terms._initializers = dict(graph.initializers)
        terms.outputs = {name: mapped[node] for name, node in graph.outputs.items()}
        terms.gradients = {name: mapped[node] for name, node in graph.gradients.items()}
        terms.effects = [mapped[node] for node in graph.effects]
        terms._pin_roots()
        return terms

    def make(self, op: str, inputs: Sequence[Term], *, owner: str = "", **attrs: Any) -> Term:
        """The term for an operation; types and attributes are checked by the op's definition."""
        result = definition(op).infer([value.type for value in inputs], attrs)
        return self._intern(op, tuple(inputs), attrs, result, owner)

    def constant(self, value: np.ndarray) -> Term:
        """A constant named after its content."""
        stored = np.ascontiguousarray(value, np.float32)
        stored.setflags(write=False)
        digest = sha256(repr(stored.shape).encode() + stored.tobytes()).hexdigest()[:16]
        attrs = {"name": f"folded.{digest}", "value": stored}
        return self._intern("constant", (), attrs, TensorType(stored.shape), "")

    def owned(self, term: Term, owner: str) -> Term | None:
        """The same operation with storage of its own; None if it has no storage to own."""
        if not owner:
            return term
        if term.is_source or term.is_view:
            return None
        return self._intern(term.op, term.inputs, term.attrs, term.type, owner)

    def with_inputs(self, term: Term, inputs: Sequence[Term]) -> Term:
        """The same operation on other operands of the same types."""
        return self._intern(term.op, tuple(inputs), term.attrs, term.type, term.owner)

    def rebuilt(self, choose: Callable[[Term], Term]) -> Terms:
        """The same roots from other terms: `choose` gives the equal term to compute for a term."""
        new = Terms(self.facts)
        new._initializers, new._sources = self._initializers, self._sources
        mapped: dict[Term, Term] = {}

        def build(term: Term) -> Term:
            chosen = choose(term)
            if chosen not in mapped:
                inputs = [build(value) for value in chosen.inputs]
                new.position = min(term.position, chosen.position)
                mapped[chosen] = new.with_inputs(chosen, inputs)
            return mapped[chosen]

        for term in topological(self.roots()):
            build(term)
        new.outputs = {name: build(term) for name, term in self.outputs.items()}
        new.gradients = {name: build(term) for name, term in self.gradients.items()}
        new.effects = [build(term) for term in self.effects]
        new._pin_roots()
        return new

    def roots(self) -> list[Term]:
        """Terms that must be computed, with repetition."""
        return [*self.outputs.values(), *self.gradients.values(), *self.effects]

    def values(self) -> list[Term]:
        """What outputs, gradients and effects read: roots without the effects themselves."""
        read = [value for effect in self.effects for value in effect.inputs]
        return list(dict.fromkeys([*self.outputs.values(), *self.gradients.values(), *read]))

    def live(self) -> list[Term]:
        """All terms that the roots need, operands first."""
        return topological(self.roots())

    def total(self) -> float:
        """Estimated nanoseconds of one run."""
        return sum(term.cost for term in self.live())

    def change(self, replacements: Mapping[Term, Term]) -> float:
        """What the total would change by if every key were replaced by its value."""
        gained: dict[Term, None] = {}
        uses: Counter[Term] = Counter()
        stack = list(replacements.values())
        while stack:
            term = stack.pop()
            if term in gained or term.live:
                continue
            gained[term] = None
            for value in dict.fromkeys(term.inputs):
                uses[value] += 1
                stack.append(value)
        wanted = set(replacements.values())
        lost: dict[Term, None] = {}
        stack = list(replacements)
        while stack:
            term = stack.pop()
            if term in lost:
                continue
            lost[term] = None
            for value in dict.fromkeys(term.inputs):
                uses[value] -= 1
                if len(value.users) + uses[value] == 0 and not value.pins and value not in wanted:
                    stack.append(value)
        return sum(t.cost for t in gained) - sum(t.cost for t in lost)

    def replace(self, replacements: Mapping[Term, Term]) -> bool:
        """Let every user of a key read its value instead; whether users became equal and merged."""
        work = list(replacements.items())
        merged = -len(work)
        while work:
            old, new = (self._current(term) for term in work.pop())
            merged += 1
            if old is new:
                continue
            self._attach(new)
            self._merged[old] = new
            for user in list(old.users):
                self._redirect(user, old, new, work)
            self._move_pins(old, new)
            self._detach(old)
        return merged > 0

    def graph(self) -> Graph:
        """The graph of what the roots need: sources first, then the original order."""
        new = Graph()
        new.initializers = dict(self._initializers)
        mapped: dict[Term, Node] = {}
        by_position = sorted(self.live(), key=lambda term: term.position)
        for term in by_position:
            if term.is_source:
                name = term.attrs["name"]
                if name in self._sources:
                    mapped[term] = new.adopt(self._sources[name])
                else:
                    mapped[term] = new.constant(name, term.attrs["value"])
        for term in topological(by_position):
            if term not in mapped:
                inputs = [mapped[value] for value in term.inputs]
                mapped[term] = new.add(term.op, inputs, **term.attrs)
        new.outputs = {name: mapped[term] for name, term in self.outputs.items()}
        new.gradients = {name: mapped[term] for name, term in self.gradients.items()}
        new.effects = [mapped[term] for term in self.effects]
        return new

    def appended_to(self, graph: Graph) -> dict[Term, Node]:
        """Nodes of the graph that the terms came from: those it has, and new ones at its end."""
        known: dict[tuple[Any, ...], Node] = {}
        for node in graph.nodes:
            if node.op not in SOURCES:
                key = node.op, attribute_key(node.op, node.attrs), node.inputs
                known.setdefault(key, node)
        mapped: dict[Term, Node] = {}
        for term in self.live():
            inputs = tuple(mapped[value] for value in term.inputs)
            if term.is_source:
                mapped[term] = graph.source(term.attrs["name"])
            else:
                found = known.get((term.op, term.key[1], inputs))
                mapped[term] = found or graph.add(term.op, inputs, **term.attrs)
        return mapped

    def parameters(self, trainable: bool) -> list[Term]:
        """Live parameters of one pack, in the order in which they lie in memory."""
        live = [term for term in self._parameters if term.live]
        chosen = [term for term in live if term.attrs["trainable"] == trainable]
        return sorted(chosen, key=lambda term: term.position)

    def _pin_roots(self) -> None:
        for root in self.roots():
            root.pins += 1
            self._attach(root)

    def _intern(
        self,
        op: str,
        inputs: tuple[Term, ...],
        attrs: Mapping[str, Any],
        type: TensorType,
        owner: str,
    ) -> Term:
        term = Term(op, inputs, attrs, type, owner, self.position)
        term.key = (op, attribute_key(op, attrs), inputs, owner)
        found = self._table.get(term.key)
        if found is not None:
            return found
        term.cost = term_cost(term, self.facts)
        self._table[term.key] = term
        if op == "parameter":
            self._parameters.append(term)
        return term

    def _current(self, term: Term) -> Term:
        while term in self._merged:
            term = self._merged[term]
        return term

    def _attach(self, root: Term) -> None:
        """Count a term, and the operands that become live with it, as users of their operands."""
        stack = [root]
        while stack:
            term = stack.pop()
            self._merged.pop(term, None)
            for value in term.inputs:
                if term not in value.users:
                    if not value.live:
                        stack.append(value)
                    value.users[term] = None

    def _detach(self, root: Term) -> None:
        stack = [root]
        while stack:
            term = stack.pop()
            for value in term.inputs:
                if term in value.users:
                    del value.users[term]
                    if not value.live:
                        stack.append(value)

    def _redirect(self, user: Term, old: Term, new: Term, work: list[tuple[Term, Term]]) -> None:
        if self._table.get(user.key) is user:
            del self._table[user.key]
        user.inputs = tuple(new if value is old else value for value in user.inputs)
        user.key = (user.op, user.key[1], user.inputs, user.owner)
        user.cost = term_cost(user, self.facts)
        del old.users[user]
        new.users[user] = None
        twin = self._table.get(user.key)
        if twin is None or not twin.live:
            self._table[user.key] = user
        else:
            work.append((user, twin))

    def _move_pins(self, old: Term, new: Term) -> None:
        if old.pins:
            new.pins, old.pins = new.pins + old.pins, 0
            for named in (self.outputs, self.gradients):
                for name, term in named.items():
                    if term is old:
                        named[name] = new


def updates_are_last(graph: Graph) -> bool:
    """Whether nothing created after an effect but further effects reads what the effect changes.

    Rewriting moves reads, so it must not see values both before and after an update. Effects keep
    their order, and rules leave alone what they read of sources.
    """
    changed: set[Node] = set()
    effects = set(graph.effects)
    for node in reachable(graph.roots()):
        if node not in effects and not changed.isdisjoint(node.inputs):
            return False
        if node in effects:
            changed.update(v for v in node.inputs if v.op in ("parameter", "state"))
    return True
