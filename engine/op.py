"""What an operation is: shape rule, float64 reference, gradient rule, lowering and samples.

An op family is one file in this package; importing the package registers all of them, so a new
op touches exactly one file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from engine.errors import GraphError
from engine.graph import Node, TensorType

if TYPE_CHECKING:
    from engine.lower import Lowering

Attrs = Mapping[str, Any]
Array = np.ndarray


@dataclass(frozen=True)
class Sample:
    """One test case of an op: operand shapes, attributes and the range operands are drawn from.

    `integers` gives the u32 operands by index, each with the bound that its values stay below.
    """

    shapes: tuple[tuple[int, ...], ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    low: float = -1.0
    high: float = 1.0
    integers: dict[int, int] = field(default_factory=dict)


class Op(ABC):
    """Definition of one operation. Subclasses are stateless and registered by `register`."""

    name: str
    effect: bool = False
    """True when the op updates sources in place instead of producing a value."""
    view: bool = False
    """True when the result is its first operand's storage under another shape."""
    in_place: bool = False
    """True when the result is its first operand's storage, changed: an input or a state that
    nothing else may read (`engine.graph.verify`)."""

    @abstractmethod
    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        """Result type; raises GraphError naming the op and the offending shapes."""

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        """Types of further results, which `engine.ops.extra` reads by index."""
        return ()

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        """Operands that its kernels also read where all of these lie in memory as f16."""
        return ()

    @abstractmethod
    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        """The result in NumPy; float operands arrive as float64."""

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        """The result and then each of the `extras`, in NumPy."""
        return (self.reference(inputs, attrs),)

    @abstractmethod
    def lower(self, node: Node, to: Lowering) -> None:
        """Append the dispatches that compute `node`, and those of its `extras` that are read."""

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        """Gradient nodes per operand (None: not differentiable there).

        Every rule multiplies by `upstream`, losses included.
        """
        raise GraphError(f"{self.name} is not differentiable")

    def samples(self) -> Iterator[Sample]:
        """Awkward test cases: extents of 1, primes, sizes that no tile divides."""
        return iter(())


_DEFINITIONS: dict[str, Op] = {}
T = TypeVar("T", bound=type[Op])


def register(cls: T) -> T:
    """Class decorator: add an op that has no constructor arguments to the registry."""
    add_definition(cls())
    return cls


def add_definition(op: Op) -> None:
    """Add an op to the registry under its name."""
    if op.name in _DEFINITIONS:
        raise GraphError(f"op '{op.name}' is registered twice")
    _DEFINITIONS[op.name] = op


def definition(name: str) -> Op:
    """The definition of op `name`; GraphError if there is none."""
    if name not in _DEFINITIONS:
        import engine.ops  # noqa: F401  (registers every family)
    if name not in _DEFINITIONS:
        raise GraphError(f"unknown op '{name}'; known: {', '.join(sorted(_DEFINITIONS))}")
    return _DEFINITIONS[name]


def definitions() -> dict[str, Op]:
    """All registered ops by name."""
    import engine.ops  # noqa: F401

    return dict(_DEFINITIONS)


def require(condition: bool, op: str, rule: str, *inputs: TensorType) -> None:
    """Raise GraphError "op: rule, got types" unless `condition`."""
    if not condition:
        raise GraphError(f"{op}: {rule}, got {' and '.join(map(str, inputs))}")
