"""The pipeline: graph -> rewrite -> lower -> schedule -> merge -> memory plan -> Plan."""

from __future__ import annotations

from collections.abc import Collection

from engine.graph import Graph, verify
from engine.halves import halved
from engine.lower import Lowering
from engine.memory import plan_memory
from engine.merge import merge
from engine.plan import Plan
from engine.rewrite import Engine, rewrite
from engine.schedule import schedule, verify_groups
from engine.specialize import Contract, DeviceFacts
from engine.storage import Storage


def compile_graph(
    graph: Graph,
    facts: DeviceFacts | None = None,
    *,
    contract: Contract = "strict",
    storage: Storage = "f32",
    kept: Collection[str] = (),
    optimize: bool | Engine = True,
    alias: bool = True,
) -> Plan:
    """Compile everything that the graph's outputs, gradients and effects need.

    `contract`: strict f32, or accelerated, where products round their factors to 11 bits on devices
    with matrix units; sums and results are f32 in both.
    `storage`: of f16, parameters that only products and gathers read lie in memory so, but for
    those in `kept` (see `engine.halves`); arithmetic and all else stay f32. Programs that train
    cannot have it: PlanError.
    `optimize` names the rewriting engine ("greedy", which is also True, or "egraph") or is False
    for none, and `alias=False` gives each transient its own memory; neither may change results
    beyond rounding.
    """
    facts = (facts or DeviceFacts()).under(contract)
    verify(graph)
    if optimize:
        graph = rewrite(graph, "greedy" if optimize is True else optimize, facts)
        verify(graph)
    lowered = Lowering(graph, facts, halved(graph, kept) if storage == "f16" else frozenset())
    dispatches, groups = schedule(lowered.dispatches)
    # A CPU runs workgroups one after another anyway.
    if not facts.is_cpu:
        dispatches, groups = merge(dispatches, groups, lowered.buffers, facts)
    verify_groups(dispatches, groups)
    limit = min(facts.max_binding_bytes, facts.max_buffer_bytes)
    slabs, placements = plan_memory(lowered.buffers, dispatches, groups, limit, alias=alias)
    return Plan(
        buffers=tuple(lowered.buffers),
        dispatches=dispatches,
        groups=groups,
        slabs=slabs,
        placements=placements,
        tensors=dict(lowered.tensors),
        types=dict(lowered.types),
        constants=dict(lowered.constants),
    )
