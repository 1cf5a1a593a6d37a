"""Memory planning: packs for what persists, shared slabs for transients.

WebGPU forbids binding one GPU buffer as read-only and writable in one dispatch, so a slab is an
allocation of its own and transients of one slab are never live at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import PlanError
from engine.plan import Buffer, Dispatch, Placement, Slab

ALIGNMENT = 256
"""Bytes; WebGPU's guaranteed alignment of a storage binding's offset."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the binding alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def pack_runs(sizes: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Split packed tensors into runs [first, last) of at most `limit` aligned bytes each."""
    runs: list[tuple[int, int]] = []
    first, total = 0, 0
    for position, size in enumerate(sizes):
        padded = aligned(size)
        if total and total + padded > limit:
            runs.append((first, position))
            first, total = position, 0
        total += padded
    return [*runs, (first, len(sizes))] if sizes else []


@dataclass
class _Lifetime:
    first: int
    last: int


def plan_memory(
    buffers: Sequence[Buffer],
    dispatches: Sequence[Dispatch],
    starts: Sequence[int],
    limit: int,
    *,
    alias: bool = True,
) -> tuple[tuple[Slab, ...], tuple[Placement, ...]]:
    """Give every buffer a place. With `alias=False` each transient gets its own slab.

    Lifetimes count in barrier groups; the pool is searched best fit, large buffers first within
    a group, and a free slab that is too small may grow when that is cheaper than a new one.
    """
    largest = max((b.type.nbytes for b in buffers), default=0)
    if largest > limit:
        raise PlanError(f"a tensor has {largest} bytes, but this device binds at most {limit}")
    slabs: list[Slab] = []
    placements: dict[int, Placement] = {}
    _place_packs(buffers, slabs, placements, limit)
    for buffer in buffers:
        if buffer.id not in placements and buffer.kind != "transient":
            placements[buffer.id] = Placement(len(slabs), 0)
            slabs.append(Slab(aligned(buffer.type.nbytes), buffer.kind))
    lifetimes = _lifetimes(dispatches, starts)
    transients = [b for b in buffers if b.kind == "transient"]
    for buffer in transients:
        if buffer.id not in lifetimes:
            raise PlanError(f"transient buffer {buffer.id} is never used")
    busy_until: dict[int, int] = {}
    order = sorted(transients, key=lambda b: (lifetimes[b.id].first, -b.type.nbytes, b.id))
    for buffer in order:
        life, need = lifetimes[buffer.id], aligned(buffer.type.nbytes)
        free = [s for s, until in busy_until.items() if until < life.first] if alias else []
        roomy = [s for s in free if slabs[s].nbytes >= need]
        if roomy:
            slab = min(roomy, key=lambda s: slabs[s].nbytes)
        elif free:
            slab = max(free, key=lambda s: slabs[s].nbytes)
            slabs[slab] = Slab(need, "transient")
        else:
            slab = len(slabs)
            slabs.append(Slab(need, "transient"))
        busy_until[slab] = life.last
        placements[buffer.id] = Placement(slab, 0)
    _check(dispatches, placements)
    return tuple(slabs), tuple(placements[b.id] for b in buffers)


def _place_packs(
    buffers: Sequence[Buffer], slabs: list[Slab], placements: dict[int, Placement], limit: int
) -> None:
    packs: dict[str, list[Buffer]] = {}
    for buffer in buffers:
        if buffer.pack:
            packs.setdefault(buffer.pack, []).append(buffer)
    for members in packs.values():
        for first, last in pack_runs([b.type.nbytes for b in members], limit):
            offset = 0
            for buffer in members[first:last]:
                placements[buffer.id] = Placement(len(slabs), offset)
                offset += aligned(buffer.type.nbytes)
            slabs.append(Slab(offset, members[first].kind))


def _lifetimes(dispatches: Sequence[Dispatch], starts: Sequence[int]) -> dict[int, _Lifetime]:
    lifetimes: dict[int, _Lifetime] = {}
    group = -1
    beginnings = set(starts)
    for index, dispatch in enumerate(dispatches):
        group += index in beginnings
        for b in dispatch.read_ids() | dispatch.write_ids():
            life = lifetimes.setdefault(b, _Lifetime(group, group))
            life.last = group
    return lifetimes


def _check(dispatches: Sequence[Dispatch], placements: dict[int, Placement]) -> None:
    """No dispatch may bind one slab both read-only and writable."""
    for dispatch in dispatches:
        read = {placements[b].slab for b in dispatch.read_ids()}
        written = {placements[b].slab for b in dispatch.write_ids()}
        if read & written:
            raise PlanError(f"{dispatch.kernel.label} binds a slab both read-only and writable")
