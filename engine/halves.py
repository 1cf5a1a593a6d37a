"""Which parameters a plan for inference keeps as f16, half the bytes (`engine.storage`).

Products of few rows take as long as their matrix takes to be read. Kernels widen elements as they
load them (WGSL's unpack2x16float, which needs no feature of the device) and compute in f32.
"""

from __future__ import annotations

from collections.abc import Collection

from engine.errors import PlanError
from engine.graph import SOURCES, Graph, Node, reachable
from engine.lower import storage_root
from engine.op import definition


def halved(graph: Graph, kept: Collection[str] = ()) -> frozenset[str]:
    """Names of the parameters, but for those in `kept`, that all their readers can read as f16.

    Those are matrices of products, weights of convolutions and tables of rows, in rows of 4 n
    elements; products that read several at once need all of them alike. Raises PlanError for a
    graph that has gradients or effects.
    """
    if graph.gradients or graph.effects:
        raise PlanError("f16 storage is for inference; this program trains: keep its storage f32")
    nodes = reachable(graph.roots())
    found = {node for node in nodes if node.op == "parameter" and node.name not in kept}
    found -= {storage_root(node) for node in graph.outputs.values()}
    together: list[set[Node]] = []
    for node in nodes:
        if node.op in SOURCES or definition(node.op).view:
            continue
        roots = [storage_root(value) for value in node.inputs]
        able = definition(node.op).halves([value.type for value in node.inputs], node.attrs)
        found -= {root for place, root in enumerate(roots) if place not in able}
        together.append({roots[place] for place in able})
    while odd := next((some for some in together if some & found and not some <= found), None):
        found -= odd
    return frozenset(node.name for node in found)
