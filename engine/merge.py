"""Launches that do not depend on each other as one launch.

A barrier between launches lets the device run empty and fill again: a few microseconds, as long as
many a launch of training itself takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from engine.chunks import GPU_COSTS
from engine.kernels.merged import Bound, aligned, choice, common_size, merged, shared_bytes
from engine.plan import Buffer, BufferIds, Dispatch
from engine.specialize import DeviceFacts

MOST_PARTS = 8
"""Kernels of one launch."""
MOST_SOURCE = 120_000
"""Characters of their sources: compilers take more than twice as long for twice as much."""

UPDATED = ("parameter", "state")

Bundle = list[Dispatch]
"""What becomes one launch."""


def merge(
    dispatches: Sequence[Dispatch],
    starts: Sequence[int],
    buffers: Sequence[Buffer],
    facts: DeviceFacts,
) -> tuple[tuple[Dispatch, ...], tuple[int, ...]]:
    """Fewer launches that do the same, and the index at which each barrier group starts."""
    groups = [
        _bundles(dispatches[first:last], buffers, facts)
        for first, last in pairwise([*starts, len(dispatches)])
    ]
    launches = tuple(_launch(bundle) for group in groups for bundle in group)
    begins = accumulate((len(group) for group in groups), initial=0)
    return launches, tuple(begins)[:-1]


def fit_together(parts: Sequence[Dispatch], buffers: Sequence[Buffer], facts: DeviceFacts) -> bool:
    """Whether dispatches that do not depend on each other can be one launch."""
    kernels = [part.kernel for part in parts]
    if len(parts) > MOST_PARTS or sum(len(kernel.source) for kernel in kernels) > MOST_SOURCE:
        return False
    # Updates walk through packs: they fill the device, and pair the packs' elements.
    if any(buffers[b].kind in UPDATED for part in parts for b in part.write_ids()):
        return False
    if common_size(kernels) is None or not aligned(kernels):
        return False
    if shared_bytes(kernels) > facts.max_shared_bytes:
        return False
    # The same bytes may be bound twice, as elements of two types.
    bindings = sum(len(part.reads) + len(part.writes) for part in parts)
    reads, writes = (
        {buffers[b].pack for part in parts for b in found(part)} - {""}
        for found in (Dispatch.read_ids, Dispatch.write_ids)
    )
    # A pack is one GPU buffer, which WebGPU forbids to bind as read-only and writable.
    return bindings <= facts.max_storage_buffers and not reads & writes


def _bundles(
    group: Sequence[Dispatch], buffers: Sequence[Buffer], facts: DeviceFacts
) -> list[Bundle]:
    """First those whose workgroups have a fixed size, so that others may join them; of these the
    shortest, which gain most.
    """
    found: list[Bundle] = []
    for dispatch in sorted(group, key=lambda d: (choice(d.kernel), _work_ns(d, buffers))):
        homes = (one for one in found if fit_together([*one, dispatch], buffers, facts))
        home = next(homes, None)
        if home is None:
            found.append([dispatch])
        else:
            home.append(dispatch)
    return found


def _launch(bundle: Bundle) -> Dispatch:
    """The longest workgroups come first, so that the short ones fill the end."""
    if len(bundle) == 1:
        return bundle[0]
    parts = sorted(bundle, key=lambda part: -part.kernel.flops / prod(part.kernel.grid))
    operands: dict[BufferIds, int] = {}
    bound = []
    for part in parts:
        own = [(ids, False) for ids in part.reads] + [(ids, True) for ids in part.writes]
        bound.append(tuple(Bound(operands.setdefault(ids, len(operands)), w) for ids, w in own))
    made = merged(tuple(part.kernel for part in parts), tuple(bound))
    order = list(operands)
    ids = [order[number] for number in made.operands]
    reads = len(ids) - sum(len(part.writes) for part in parts)
    return Dispatch(made.kernel, tuple(ids[:reads]), tuple(ids[reads:]))


def _work_ns(dispatch: Dispatch, buffers: Sequence[Buffer]) -> float:
    """Nanoseconds by the roofline, without the launch."""
    ids = (b for ids in (*dispatch.reads, *dispatch.writes) for b in ids)
    nbytes = sum(buffers[b].type.nbytes for b in ids)
    return max(dispatch.kernel.flops / GPU_COSTS.flops_per_ns, nbytes / GPU_COSTS.bytes_per_ns)
