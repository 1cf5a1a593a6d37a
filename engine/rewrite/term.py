"""One value of a graph that is being rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine.graph import SOURCES, TensorType
from engine.op import definition

Key = tuple[Any, ...]


class Term:
    """One value. `owner` names the gradient whose storage it is; owned terms are never shared."""

    def __init__(
        self,
        op: str,
        inputs: tuple[Term, ...],
        attrs: Mapping[str, Any],
        type: TensorType,
        owner: str,
        position: int,
    ) -> None:
        self.op, self.inputs, self.attrs, self.type = op, inputs, attrs, type
        self.owner, self.position = owner, position
        self.users: dict[Term, None] = {}
        self.pins = 0
        self.cost = 0.0
        self.key: Key = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""
        return self.type.shape

    @property
    def is_source(self) -> bool:
        """Whether this is a parameter, input, constant or state."""
        return self.op in SOURCES

    @property
    def is_view(self) -> bool:
        """Whether the value is its operand's storage under another shape."""
        return not self.is_source and definition(self.op).view

    @property
    def live(self) -> bool:
        """Whether a root needs this term."""
        return bool(self.users) or self.pins > 0

    @property
    def storage(self) -> Term:
        """The term whose storage holds this one: views resolve to what they view."""
        term = self
        while term.is_view:
            term = term.inputs[0]
        return term

    def __str__(self) -> str:
        name = self.attrs["name"] if self.is_source else self.op
        return f"{name} {self.type}"


def topological(roots: Iterable[Term]) -> list[Term]:
    """All terms below `roots`, operands first, otherwise in the order of the roots."""
    done: dict[Term, None] = {}
    for root in roots:
        stack: list[tuple[Term, Iterator[Term]]] = [(root, iter(root.inputs))]
        while stack:
            term, operands = stack[-1]
            pending = next((value for value in operands if value not in done), None)
            if pending is not None:
                stack.append((pending, iter(pending.inputs)))
            else:
                done.setdefault(term)
                stack.pop()
    return list(done)


def attribute_key(op: str, attrs: Mapping[str, Any]) -> str:
    """A text that is equal for equal attributes; sources are told by their names."""
    if op in SOURCES:
        return str(attrs["name"])
    return repr(sorted(attrs.items()))
