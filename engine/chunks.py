"""Cutting a dispatch list into contiguous chunks of about equal cost."""

from __future__ import annotations

from collections.abc import Sequence

from engine.plan import Plan

FLOPS_PER_NS = 10_000.0
BYTES_PER_NS = 2_000.0
LAUNCH_NS = 3_000.0
"""A current discrete GPU, in round numbers; only ratios matter for cutting."""


def estimated_costs(plan: Plan) -> list[float]:
    """Nanoseconds per dispatch by the roofline: launch plus arithmetic or traffic."""
    return [
        LAUNCH_NS + max(d.kernel.flops / FLOPS_PER_NS, plan.binding_bytes(d) / BYTES_PER_NS)
        for d in plan.dispatches
    ]


def cut(costs: Sequence[float], chunks: int) -> list[tuple[int, int]]:
    """Ranges [first, last) that cover all dispatches, in order, none of them empty.

    Each boundary falls where the running cost is nearest to its share. With fewer dispatches
    than chunks, every dispatch is a chunk of its own. Raises ValueError for chunks < 1.
    """
    if chunks < 1:
        raise ValueError(f"chunk count must be at least 1, got {chunks}")
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
