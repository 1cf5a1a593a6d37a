"""The typed static graph: immutable nodes in topological order, and its verifier.

One graph serves inference and training: `engine.autodiff` appends gradient nodes and
`engine.optim` appends in-place updates (effects) to the graph that the model was built in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.errors import GraphError

DTYPES = {"f32": np.dtype(np.float32), "u32": np.dtype(np.uint32)}
"""Of values."""
STORED: dict[str, np.dtype[Any]] = {**DTYPES, "f16": np.dtype(np.float16)}
"""Of elements in memory: plans may keep parameters as f16 (`engine.storage`)."""
SOURCES = ("parameter", "input", "constant", "state")
EXTRA = "extra"
"""The op that stands for a further result of its operand's op; see `engine.op.Op.extras`."""

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class TensorType:
    """Static type of a tensor: shape (all extents >= 1) and dtype, in plans one of STORED."""

    shape: tuple[int, ...]
    dtype: str = "f32"

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Size in bytes, densely packed in row-major order."""
        return self.size * STORED[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Node:
    """One value of the graph. Identity is the node itself; `id` is its place in the order."""

    graph: Graph = field(repr=False)
    id: int
    op: str
    inputs: tuple[Node, ...] = field(repr=False)
    type: TensorType
    attrs: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""
        return self.type.shape

    @property
    def name(self) -> str:
        """The name of a source node (parameter, input, constant, state); "" for computed nodes."""
        return str(self.attrs.get("name", ""))

    def __str__(self) -> str:
        shown = {k: v for k, v in self.attrs.items() if not isinstance(v, np.ndarray)}
        attrs = "".join(f" {k}={v}" for k, v in shown.items())
        args = ", ".join(f"%{i.id}" for i in self.inputs)
        return f"%{self.id}: {self.type} = {self.op}({args}){attrs}"


class Graph:
    """Append-only list of nodes with named sources, named outputs and in-place effects."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.outputs: dict[str, Node] = {}
        self.effects: list[Node] = []
        self.gradients: dict[str, Node] = {}
        self.initializers: dict[str, Initializer] = {}
        self._sources: dict[str, Node] = {}

    def parameter(
        self, name: str, shape: Sequence[int], init: Initializer, *, trainable: bool = True
    ) -> Node:
        """Declare a learnable (or, with `trainable=False`, frozen) f32 tensor."""
        node = self._source("parameter", name, shape, "f32", trainable=trainable)
        self.initializers[name] = init
        return node

    def input(self, name: str, shape: Sequence[int], dtype: str = "f32") -> Node:
        """Declare a tensor that the host writes before a run."""
        return self._source("input", name, shape, dtype)

    def constant(self, name: str, value: np.ndarray) -> Node:
        """Embed a tensor whose value is fixed when the plan is made."""
        dtype = "u32" if value.dtype.kind in "ui" else "f32"
        if dtype == "u32" and value.size and not 0 <= value.min() <= value.max() < 1 << 32:
            raise GraphError(f"constant '{name}': integers must fit u32")
        stored = np.array(value, DTYPES[dtype], order="C")
        stored.setflags(write=False)
        return self._source("constant", name, value.shape, dtype, value=stored)

    def state(self, name: str, shape: Sequence[int]) -> Node:
        """Declare a tensor that persists between runs and starts at zero (optimiser moments)."""
        return self._source("state", name, shape, "f32")

    def output(self, name: str, node: Node) -> Node:
        """Name a value that the host, or another user of the device, reads after a run."""
        if name in self.outputs or name in self._sources:
            raise GraphError(f"output name '{name}' is already taken")
        self.outputs[name] = node
        return node

    def add(self, op: str, inputs: Sequence[Node], **attrs: Any) -> Node:
        """Append an operation; shapes, dtypes and attributes are checked now, by its definition."""
        from engine.op import definition

        for value in inputs:
            if value.graph is not self:
                raise GraphError(f"{op}: %{value.id} belongs to another graph")
        try:
            result = definition(op).infer([value.type for value in inputs], attrs)
        except KeyError as missing:
            raise GraphError(f"{op}: the attribute {missing} is missing") from missing
        return self._append(op, tuple(inputs), result, attrs)

    def adopt(self, source: Node) -> Node:
        """Declare a copy of another graph's parameter, input, constant or state."""
        node = self._append(source.op, (), source.type, source.attrs)
        self._sources[source.name] = node
        return node

    def parameters(self, *, trainable: bool | None = None) -> list[Node]:
        """Parameters in declaration order, optionally only trainable or only frozen ones."""
        return [
            node
            for node in self.nodes
            if node.op == "parameter"
            and (trainable is None or node.attrs["trainable"] == trainable)
        ]

    def source(self, name: str) -> Node:
        """The parameter, input, constant or state called `name`; GraphError if there is none."""
        if name not in self._sources:
            raise GraphError(f"the graph has no parameter, input, constant or state '{name}'")
        return self._sources[name]

    def roots(self) -> list[Node]:
        """Nodes that must be computed: outputs, gradients kept for the host, and effects."""
        return [*self.outputs.values(), *self.gradients.values(), *self.effects]

    def __str__(self) -> str:
        lines = [str(node) for node in self.nodes]
        lines += [f"output {name} = %{node.id}" for name, node in self.outputs.items()]
        return "\n".join(lines)

    def _source(self, op: str, name: str, shape: Sequence[int], dtype: str, **attrs: Any) -> Node:
        if not name or name in self._sources or name in self.outputs:
            raise GraphError(f"{op} name '{name}' is empty or already taken")
        if dtype not in DTYPES:
            raise GraphError(f"{op} '{name}': dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        kind = TensorType(tuple(int(extent) for extent in shape), dtype)
        if any(extent < 1 for extent in kind.shape):
            raise GraphError(f"{op} '{name}': every extent must be >= 1, got {kind}")
        node = self._append(op, (), kind, {"name": name, **attrs})
        self._sources[name] = node
        return node

    def _append(
        self, op: str, inputs: tuple[Node, ...], result: TensorType, attrs: Mapping[str, Any]
    ) -> Node:
        node = Node(self, len(self.nodes), op, inputs, result, MappingProxyType(dict(attrs)))
        self.nodes.append(node)
        return node


def reachable(roots: Iterable[Node]) -> list[Node]:
    """All nodes that `roots` depend on, roots included, in topological (id) order."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
    return sorted(seen, key=lambda node: node.id)


def consumers(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For each node, the nodes among `nodes` that read it, with repetition, in order."""
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        users.setdefault(node, [])
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    return users


def verify(graph: Graph) -> None:
    """Check order, membership and types of every node. Raises GraphError on the first fault."""
    from engine.op import definition

    for position, node in enumerate(graph.nodes):
        if node.id != position or node.graph is not graph:
            raise GraphError(f"node {node} stands at position {position}")
        if any(value.id >= node.id for value in node.inputs):
            raise GraphError(f"node {node} reads a later node")
        if not all(_member(graph, value) for value in node.inputs):
            raise GraphError(f"node {node} reads a node that is not in the graph")
        if node.op in SOURCES:
            continue
        inferred = definition(node.op).infer([value.type for value in node.inputs], node.attrs)
        if inferred != node.type:
            raise GraphError(f"node {node} should have type {inferred}")
        if node.op == EXTRA and node.type not in _extra_types(node):
            raise GraphError(f"{node}: {node.inputs[0].op} has no such further result")
    _verify_in_place(graph)
    for what, named in (("output", graph.outputs), ("gradient", graph.gradients)):
        for name, node in named.items():
            if not _member(graph, node):
                raise GraphError(f"{what} '{name}' is not a node of the graph")
    for effect in graph.effects:
        if not _member(graph, effect):
            raise GraphError(f"effect {effect} is not a node of the graph")
        if not definition(effect.op).effect:
            raise GraphError(f"{effect} is listed as an effect but has none")


def _verify_in_place(graph: Graph) -> None:
    """What an op changes in place is an input or a state that nothing else reads, so that reads
    of the old and of the new value cannot be confused.
    """
    from engine.op import definition

    users = consumers(reachable(graph.roots()))
    for node in users:
        if node.op in SOURCES or not definition(node.op).in_place:
            continue
        changed = node.inputs[0]
        if changed.op not in ("input", "state"):
            raise GraphError(f"{node} changes %{changed.id}, which is neither input nor state")
        if len(users[changed]) > 1 or changed in graph.outputs.values():
            raise GraphError(f"{node} changes '{changed.name}', which something else reads")


def _extra_types(extra: Node) -> tuple[TensorType, ...]:
    """The type that the producer of an `extra` gives it, or nothing."""
    from engine.op import definition

    producer, index = extra.inputs[0], extra.attrs["index"]
    if producer.op in SOURCES:
        return ()
    types = [value.type for value in producer.inputs]
    return definition(producer.op).extras(types, producer.attrs)[index : index + 1]


def _member(graph: Graph, node: Node) -> bool:
    return 0 <= node.id < len(graph.nodes) and graph.nodes[node.id] is node
