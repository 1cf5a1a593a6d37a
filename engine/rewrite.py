"""Graph rewriting: each rule is a function from graph to graph, applied in a fixed order.

Rules: common subexpressions (dead nodes vanish with them), matrix-product epilogues (bias,
activation) and pointwise chains. Cost is bytes moved plus launches; each rule lowers both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.graph import SOURCES, Graph, Node, consumers, reachable
from engine.lower import storage_root
from engine.op import definition
from engine.ops.pointwise import Pointwise, Unary

MAX_OPERANDS = 7
"""Operands of a fused kernel, so that with its result it binds at most 8 buffers."""

Mapped = dict[Node, Node]


def rewrite(graph: Graph) -> Graph:
    """Apply all rules; the result computes the same outputs, gradients and effects."""
    for rule in (merge_common, fuse_epilogues, fuse_pointwise):
        graph = rule(graph)
    return graph


def merge_common(graph: Graph) -> Graph:
    """Compute equal expressions once, and drop what no root needs."""
    seen: dict[tuple[Any, ...], Node] = {}
    # Gradients keep storage of their own: see engine.optim.
    owned = {storage_root(node) for node in graph.gradients.values()} | set(graph.effects)

    def build(node: Node, mapped: Mapped, new: Graph) -> Node:
        inputs = tuple(mapped[value] for value in node.inputs)
        if node in owned:
            return new.add(node.op, inputs, **node.attrs)
        key = (node.op, inputs, repr(sorted(node.attrs.items())))
        if key not in seen:
            seen[key] = new.add(node.op, inputs, **node.attrs)
        return seen[key]

    return _rebuild(graph, build)


def fuse_epilogues(graph: Graph) -> Graph:
    """Matmul + row bias, then + unary activation, become one kernel where used only once."""
    users = consumers(reachable(graph.roots()))
    kept = set(graph.roots())

    def only_use(node: Node) -> bool:
        return len(users[node]) == 1 and node not in kept

    def build(node: Node, mapped: Mapped, new: Graph) -> Node:
        inputs = [mapped[value] for value in node.inputs]
        first = inputs[0] if inputs else None
        if first is not None and first.op == "matmul" and only_use(node.inputs[0]):
            plain = first.attrs["activation"] == ""
            if node.op == "add" and plain and len(first.inputs) == 2:
                bias = inputs[1]
                if bias.shape == first.shape[-1:] and node.shape == first.shape:
                    return new.add("matmul", [*first.inputs, bias], **first.attrs)
            if isinstance(definition(node.op), Unary) and plain:
                return new.add("matmul", first.inputs, **{**first.attrs, "activation": node.op})
        return new.add(node.op, inputs, **node.attrs)

    return merge_common(_rebuild(graph, build))


def fuse_pointwise(graph: Graph) -> Graph:
    """A pointwise node used once, by a pointwise node of the same shape, is computed inside it."""
    nodes = reachable(graph.roots())
    users = consumers(nodes)
    kept = set(graph.roots())

    def inlinable(value: Node, user: Node) -> bool:
        return (
            _is_pointwise(value)
            and value not in kept
            and len(users[value]) == 1
            and value.shape == user.shape
        )

    def build(node: Node, mapped: Mapped, new: Graph) -> Node:
        inputs = [mapped[value] for value in node.inputs]
        if not _is_pointwise(node):
            return new.add(node.op, inputs, **node.attrs)
        absorbed: list[Node] = []
        for old, value in zip(node.inputs, inputs, strict=True):
            if inlinable(old, node) and value not in absorbed:
                wanted = _operands(inputs, [*absorbed, value])
                if len(wanted) <= MAX_OPERANDS:
                    absorbed.append(value)
        if not absorbed:
            return new.add(node.op, inputs, **node.attrs)
        return _fuse(node, inputs, absorbed, new)

    return merge_common(_rebuild(graph, build))


def _is_pointwise(node: Node) -> bool:
    return node.op not in SOURCES and isinstance(definition(node.op), Pointwise)


def _operands(inputs: list[Node], absorbed: list[Node]) -> list[Node]:
    """Distinct operands of a node once the absorbed inputs are replaced by their own."""
    flat = [v for value in inputs for v in (value.inputs if value in absorbed else (value,))]
    return list(dict.fromkeys(flat))


def _steps(node: Node) -> tuple[Any, ...]:
    if node.op == "fused":
        return tuple(node.attrs["steps"])
    return ((node.op, dict(node.attrs), tuple(range(len(node.inputs)))),)


def _fuse(node: Node, inputs: list[Node], absorbed: list[Node], new: Graph) -> Node:
    operands = _operands(inputs, absorbed)
    steps: list[Any] = []
    result_of: dict[Node, int] = {}

    def emit(source_steps: tuple[Any, ...], arguments: list[int]) -> int:
        base = len(arguments)
        places = list(arguments)
        for op, attrs, own in source_steps:
            steps.append((op, attrs, tuple(places[a] for a in own)))
            places.append(len(operands) + len(steps) - 1)
        return places[base + len(source_steps) - 1]

    for value in absorbed:
        result_of[value] = emit(_steps(value), [operands.index(v) for v in value.inputs])
    emit(
        _steps(node),
        [result_of[v] if v in result_of else operands.index(v) for v in inputs],
    )
    return new.add("fused", operands, steps=tuple(steps))


def _rebuild(graph: Graph, build: Callable[[Node, Mapped, Graph], Node]) -> Graph:
    """Copy a graph node by node through `build`, carrying names of sources and roots over."""
    new = Graph()
    mapped: Mapped = {}
    for node in reachable(graph.roots()):
        if node.op in SOURCES:
            mapped[node] = new.adopt(node)
        else:
            mapped[node] = build(node, mapped, new)
    new.initializers = dict(graph.initializers)
    new.outputs = {name: mapped[node] for name, node in graph.outputs.items()}
    new.gradients = {name: mapped[node] for name, node in graph.gradients.items()}
    new.effects = [mapped[node] for node in graph.effects]
    return new
