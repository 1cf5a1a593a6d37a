"""Reverse-mode differentiation: gradient nodes appended to the same graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import GraphError
from engine.graph import SOURCES, Node, reachable
from engine.op import definition
from engine.ops.pointwise import add
from engine.ops.shape import reshape


def gradients(loss: Node, wrt: Sequence[Node], seed: Node | None = None) -> list[Node]:
    """d(loss)/d(node) for each node of `wrt`, each with that node's shape.

    `loss` is a scalar of shape [1], or any tensor when `seed`, the upstream gradient of its
    shape, is given. A node that the loss does not depend on gets zeros.

    Only the part of the graph between `wrt` and the loss is visited, so a frozen encoder below
    a trained decoder costs nothing.
    """
    graph = loss.graph
    if seed is None:
        if loss.shape != (1,):
            raise GraphError(f"the loss must have shape [1], got {loss.type}")
        seed = graph.constant(f"seed.{len(graph.nodes)}", np.ones(1, np.float32))
    elif seed.shape != loss.shape:
        raise GraphError(f"the seed must have the shape of the loss, got {seed.type}")
    nodes = reachable([loss])
    wanted = set(wrt)
    active: set[Node] = set()
    for node in nodes:
        if node in wanted or any(value in active for value in node.inputs):
            active.add(node)
    upstream: dict[Node, Node] = {loss: seed}
    for node in reversed(nodes):
        if node not in active or node not in upstream or node.op in SOURCES:
            continue
        contributions = definition(node.op).gradient(node, upstream[node])
        for value, grad in zip(node.inputs, contributions, strict=True):
            if grad is None or value not in active:
                continue
            upstream[value] = add(upstream[value], grad) if value in upstream else grad
    return [upstream[node] if node in upstream else _zeros(node) for node in wrt]


def _zeros(node: Node) -> Node:
    value = np.zeros(node.type.size, np.float32)
    zeros = node.graph.constant(f"zeros.{len(node.graph.nodes)}", value)
    return reshape(zeros, node.shape)
