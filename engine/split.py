"""Splitting long kernels, so that no launch holds the queue longer than a cap.

A chunk boundary cannot fall inside a launch, so the longest one bounds how long a frame waits. A
launch above the cap becomes several that run one part of its workgroups each, into the same
buffers. Nothing else changes: barrier groups, storage and results, bit for bit, stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, isfinite, prod

from engine.errors import KernelTooLong
from engine.kernels.wgsl import Kernel
from engine.plan import Plan

MAX_PARTS = 256
"""Of one launch. Each part is a pipeline of its own, which takes the device time to compile."""


def split_plan(plan: Plan, costs_ns: Sequence[float], cap_ns: float) -> Plan:
    """The plan with every dispatch that costs more than `cap_ns` in parts within the cap.

    `costs_ns` are measured nanoseconds per dispatch. A part is expected to cost its share of the
    workgroups; where that is wrong (few workgroups on a wide device, uneven ones under a causal
    mask) the result can be measured and split again.

    Raises KernelTooLong when a dispatch cannot be split enough, ValueError when the costs do not
    fit the plan or the cap is not positive.
    """
    parts = _parts(plan, costs_ns, cap_ns)
    starts = [0]
    for kernels in parts:
        starts.append(starts[-1] + len(kernels))
    return replace(
        plan,
        dispatches=tuple(
            replace(dispatch, kernel=kernel)
            for dispatch, kernels in zip(plan.dispatches, parts, strict=True)
            for kernel in kernels
        ),
        groups=tuple(starts[first] for first in plan.groups),
    )


def split_costs(plan: Plan, costs_ns: Sequence[float], cap_ns: float) -> list[float]:
    """Expected nanoseconds per dispatch of `split_plan(plan, costs_ns, cap_ns)`; raises as it."""
    return [
        cost * (prod(kernel.grid) / prod(dispatch.kernel.grid))
        for dispatch, cost, kernels in zip(
            plan.dispatches, costs_ns, _parts(plan, costs_ns, cap_ns), strict=True
        )
        for kernel in kernels
    ]


def _parts(plan: Plan, costs_ns: Sequence[float], cap_ns: float) -> list[list[Kernel]]:
    """Kernels that stand for each dispatch: itself, or its parts."""
    if not cap_ns > 0:
        raise ValueError(f"the cap on kernel time must be positive, got {cap_ns} ns")
    if len(costs_ns) != len(plan.dispatches):
        raise ValueError(f"{len(costs_ns)} costs for {len(plan.dispatches)} dispatches")
    if not all(isfinite(cost) and cost >= 0 for cost in costs_ns):
        raise ValueError("costs of dispatches must be finite and not negative")
    return [
        _within(d.kernel, index, cost, cap_ns)
        for index, (d, cost) in enumerate(zip(plan.dispatches, costs_ns, strict=True))
    ]


def _within(kernel: Kernel, index: int, cost_ns: float, cap_ns: float) -> list[Kernel]:
    """Parts of a kernel that are expected to keep the cap."""
    if cost_ns <= cap_ns:
        return [kernel]
    groups = prod(kernel.grid)
    most = int(groups * (cap_ns / cost_ns))
    if not kernel.takes_base:
        fault = "its shader's entry point cannot start at a later workgroup"
    elif groups == 1:
        fault = "it is a single workgroup"
    elif most < 1:
        fault = f"each of its {groups} workgroups takes {cost_ns / groups / 1e6:.3g} ms"
    elif ceil(groups / most) > MAX_PARTS or len(parts := _cut(kernel, most)) > MAX_PARTS:
        fault = f"it would take more than {MAX_PARTS} parts"
    else:
        return parts
    raise KernelTooLong(
        f"launch {index} ({kernel.label}) takes {cost_ns / 1e6:.3g} ms, the cap is "
        f"{cap_ns / 1e6:.3g} ms, and it cannot be split enough: {fault}; raise --max-kernel-ms"
    )


def _cut(kernel: Kernel, most: int) -> list[Kernel]:
    """Near-equal parts of at most `most` workgroups, along the axis that needs fewest."""
    groups = prod(kernel.grid)
    if groups <= most:
        return [kernel]
    counts = {
        axis: ceil(extent / fit)
        for axis, extent in enumerate(kernel.grid)
        if (fit := most * extent // groups) > 0
    }
    if counts:
        # Of equals the outermost: its layers lie together in memory.
        axis = min(counts, key=lambda axis: (counts[axis], -axis))
        return _layers(kernel, axis, counts[axis])
    # A single layer is too much along any axis.
    axis = max(range(3), key=lambda axis: kernel.grid[axis])
    layers = _layers(kernel, axis, kernel.grid[axis])
    return [part for layer in layers for part in _cut(layer, most)]


def _layers(kernel: Kernel, axis: int, count: int) -> list[Kernel]:
    """`count` near-equal parts along an axis, in order."""
    extent = kernel.grid[axis]
    bounds = [extent * k // count for k in range(count + 1)]
    return [kernel.part(axis, first, last - first) for first, last in pairwise(bounds)]
