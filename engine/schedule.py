"""Scheduling: dispatches sorted by dependency level and cut into barrier groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from engine.errors import PlanError
from engine.plan import Dispatch


def schedule(dispatches: Sequence[Dispatch]) -> tuple[tuple[Dispatch, ...], tuple[int, ...]]:
    """Stable order by level, and the index at which each barrier group starts.

    A dispatch stands one level above every earlier one that it depends on: the writers of what
    it reads, and the readers and writers of what it writes. Independent work (the q, k and v
    projections, a weight gradient beside an input gradient) thus becomes adjacent and may
    overlap on the device.
    """
    last_write: dict[int, int] = {}
    last_use: dict[int, int] = {}
    levels: list[int] = []
    for dispatch in dispatches:
        reads, writes = dispatch.read_ids(), dispatch.write_ids()
        before = [last_write[b] for b in reads if b in last_write]
        before += [last_use[b] for b in writes if b in last_use]
        level = 1 + max(before, default=-1)
        levels.append(level)
        for b in reads | writes:
            last_use[b] = max(last_use.get(b, -1), level)
        for b in writes:
            last_write[b] = level
    order = sorted(range(len(dispatches)), key=lambda d: (levels[d], d))
    sorted_levels = [levels[d] for d in order]
    starts = [i for i, level in enumerate(sorted_levels) if i == 0 or level != sorted_levels[i - 1]]
    return tuple(dispatches[d] for d in order), tuple(starts)


def verify_groups(dispatches: Sequence[Dispatch], starts: Sequence[int]) -> None:
    """Check that no dispatch of a group touches what another of the group writes (PlanError)."""
    for first, last in pairwise([*starts, len(dispatches)]):
        written: set[int] = set()
        read: set[int] = set()
        for dispatch in dispatches[first:last]:
            reads, writes = dispatch.read_ids(), dispatch.write_ids()
            if (reads | writes) & written or writes & read:
                raise PlanError(f"{dispatch.kernel.label} races within its barrier group")
            written |= writes
            read |= reads
