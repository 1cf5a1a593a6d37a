"""What a graph costs: an estimate that guides rewriting, and exact figures from its lowering.

The estimate is the roofline of engine.chunks per term: a launch plus traffic or arithmetic. Only
matrix products count arithmetic; everything else is bound by traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from engine.chunks import CPU_COSTS, GPU_COSTS
from engine.graph import EXTRA, SOURCES, Graph, reachable
from engine.lower import Lowering
from engine.op import definition
from engine.ops.shape import Move
from engine.specialize import DeviceFacts

if TYPE_CHECKING:
    from engine.rewrite.term import Term

PRODUCTS = ("matmul", "packed_matmul", "packed_matmul_input_grad", "gated_matmul")


def term_cost(term: Term, facts: DeviceFacts) -> float:
    """Estimated nanoseconds of one term; sources and views are free."""
    if term.op in SOURCES or term.op == EXTRA or definition(term.op).view:
        return 0.0
    model = CPU_COSTS if facts.is_cpu else GPU_COSTS
    traffic = term.type.nbytes
    for value in dict.fromkeys(term.inputs):
        # A slice reads what it keeps.
        moves = isinstance(definition(term.op), Move)
        traffic += min(value.type.nbytes, term.type.nbytes) if moves else value.type.nbytes
    flops = 2 * term.type.size * _inner(term) if term.op in PRODUCTS else 0
    return model.launch_ns + max(flops / model.flops_per_ns, traffic / model.bytes_per_ns)


def _inner(term: Term) -> int:
    return term.inputs[0].shape[-2 if term.attrs.get("transpose_a") else -1]


@dataclass(frozen=True)
class Figures:
    """Size of one graph's program: computed nodes, launches, bound bytes; rewriting's CPU time."""

    nodes: int
    launches: int
    nbytes: int
    cpu_ms: float = 0.0


def figures(graph: Graph, facts: DeviceFacts, cpu_ms: float = 0.0) -> Figures:
    """Count what lowering emits. Bytes are those that all launches bind."""
    lowered = Lowering(graph, facts)
    nodes = [node for node in reachable(graph.roots()) if node.op not in SOURCES]
    nbytes = sum(
        lowered.buffers[b].type.nbytes
        for dispatch in lowered.dispatches
        for binding in (*dispatch.reads, *dispatch.writes)
        for b in binding
    )
    return Figures(len(nodes), len(lowered.dispatches), nbytes, cpu_ms)


def compare(
    graph: Graph, engines: Sequence[tuple[str, Callable[[Graph], Graph]]], facts: DeviceFacts
) -> dict[str, Figures]:
    """Figures of a graph as it is ("none") and after each engine, with the engine's CPU time."""
    result = {"none": figures(graph, facts)}
    for name, engine in engines:
        start = perf_counter()
        rewritten = engine(graph)
        result[name] = figures(rewritten, facts, 1e3 * (perf_counter() - start))
    return result


def report(rows: dict[str, Figures]) -> str:
    """A table for the terminal and for Markdown."""
    lines = ["| rewriting | nodes | launches | MB bound | CPU ms |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {f.nodes} | {f.launches} | {f.nbytes / 1e6:.1f} | {f.cpu_ms:.1f} |"
        for name, f in rows.items()
    ]
    return "\n".join(lines)
