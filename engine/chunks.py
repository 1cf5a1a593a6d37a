"""Cutting a dispatch list into contiguous chunks of about equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.plan import Plan


@dataclass(frozen=True)
class CostModel:
    """Round figures of a kind of device; only ratios matter for cutting."""

    flops_per_ns: float
    bytes_per_ns: float
    launch_ns: float


GPU_COSTS = CostModel(flops_per_ns=10_000.0, bytes_per_ns=2_000.0, launch_ns=3_000.0)
CPU_COSTS = CostModel(flops_per_ns=20.0, bytes_per_ns=4.0, launch_ns=30_000.0)


def estimated_costs(plan: Plan, *, is_cpu: bool = False) -> list[float]:
    """Nanoseconds per dispatch by the roofline: launch plus arithmetic or traffic."""
    model = CPU_COSTS if is_cpu else GPU_COSTS
    return [
        model.launch_ns
        + max(d.kernel.flops / model.flops_per_ns, plan.binding_bytes(d) / model.bytes_per_ns)
        for d in plan.dispatches
    ]


def cut(costs: Sequence[float], chunks: int) -> list[tuple[int, int]]:
    """Ranges [first, last) that cover all dispatches, in order, none of them empty.

    Each boundary falls where the running cost is nearest to its share. With fewer dispatches
    than chunks, every dispatch is a chunk of its own. Raises ValueError for chunks < 1.
    """
    if chunks < 1:
        raise ValueError(f"chunk count must be at least 1, got {chunks}")
    if not costs:
        return []
    count = min(chunks, len(costs))
    total = sum(costs)
    boundaries = [0]
    running, position = 0.0, 0
    for chunk in range(1, count):
        target = total * chunk / count
        latest = len(costs) - (count - chunk)
        while position < latest and running + costs[position] / 2 < target:
            running += costs[position]
            position += 1
        if position <= boundaries[-1]:
            running += costs[position]
            position += 1
        boundaries.append(position)
    return list(zip(boundaries, [*boundaries[1:], len(costs)], strict=True))
