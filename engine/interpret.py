"""A float64 interpreter in NumPy: the meaning of a graph, independent of any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.errors import GraphError
from engine.graph import EXTRA, SOURCES, Graph, Node, reachable
from engine.op import definition


def interpret(
    graph: Graph, feeds: Mapping[str, np.ndarray], wanted: Sequence[Node]
) -> list[np.ndarray]:
    """Values of the `wanted` nodes; f32 tensors are computed as float64, u32 stay integers.

    `feeds` gives parameters and inputs by name; state that is not fed is zero. Raises GraphError
    for a value that is missing or misshapen, and for effects, which have no value.
    """
    for name in feeds:
        graph.source(name)
    values: dict[Node, np.ndarray] = {}
    further: dict[Node, list[np.ndarray]] = {}
    for node in reachable(wanted):
        if node.graph is not graph:
            raise GraphError(f"{node} belongs to another graph")
        if node.op in SOURCES:
            value = _source(node, feeds)
        elif node.op == EXTRA:
            value = further[node.inputs[0]][node.attrs["index"]]
        else:
            value, *further[node] = _apply(node, values)
        if value.shape != node.shape:
            raise GraphError(f"{node} should have its type's shape, got {list(value.shape)}")
        values[node] = value
    return [values[node] for node in wanted]


def _source(node: Node, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    value = node.attrs["value"] if node.op == "constant" else feeds.get(node.name)
    if value is None and node.op == "state":
        value = np.zeros(node.shape)
    if value is None:
        raise GraphError(f"{node.op} '{node.name}' has no value; feed it")
    return np.asarray(value, np.float64 if node.type.dtype == "f32" else np.uint32)


def _apply(node: Node, values: Mapping[Node, np.ndarray]) -> tuple[np.ndarray, ...]:
    op = definition(node.op)
    if op.effect:
        raise GraphError(f"{node.op} is an effect and has no value")
    results = op.references([values[value] for value in node.inputs], node.attrs)
    return tuple(map(np.asarray, results))
