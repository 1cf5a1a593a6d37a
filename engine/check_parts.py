"""The part of the judge of plans that deals with launches given in parts.

Workgroups of one launch may not depend on each other. So dispatches of one shader on the same
bindings are free of races, and mean what one launch means, exactly when their boxes of workgroups
tile its grid. That is what is proved here; it shares no code with what splits plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from math import prod

from engine.errors import PlanError
from engine.plan import Dispatch, Plan


def launches(plan: Plan, group: range) -> Iterator[range]:
    """The launches of a barrier group: each one dispatch, or neighbours that are its parts.

    Raises PlanError when parts do not make up their launch.
    """
    first = group.start
    while first < group.stop:
        last = first + 1
        while last < group.stop and _continues(plan.dispatches[first], plan.dispatches[last]):
            last += 1
        launch = range(first, last)
        try:
            _check_parts([plan.dispatches[index] for index in launch])
        except PlanError as error:
            label = plan.dispatches[first].kernel.label
            raise PlanError(f"launch {first} ({label}): {error}") from None
        yield launch
        first = last


def _continues(first: Dispatch, other: Dispatch) -> bool:
    """Whether both are parts of one launch."""
    a, b = first.kernel, other.kernel
    same_grid = a.whole is not None and a.whole == b.whole
    same_bindings = first.reads == other.reads and first.writes == other.writes
    return same_grid and a.source == b.source and same_bindings


def _check_parts(dispatches: list[Dispatch]) -> None:
    kernel = dispatches[0].kernel
    if kernel.whole is None:
        if kernel.base != (0, 0, 0):
            raise PlanError("begins inside a grid, but is no part of one")
        return
    source = kernel.source
    takes = all(re.search(rf"\boverride\s+base_{axis}\b", source) for axis in "xyz")
    if not takes or "num_workgroups" in source:
        raise PlanError("is in parts, but its shader counts workgroups from zero")
    boxes = [
        [range(n, n + extent) for n, extent in zip(k.base, k.grid, strict=True)]
        for k in (d.kernel for d in dispatches)
    ]
    for box in boxes:
        if not all(0 <= r.start and r.stop <= n for r, n in zip(box, kernel.whole, strict=True)):
            raise PlanError("has a part outside of its grid")
    for a, b in combinations(boxes, 2):
        if all(r.start < s.stop and s.start < r.stop for r, s in zip(a, b, strict=True)):
            raise PlanError("has parts that overlap")
    if sum(prod(map(len, box)) for box in boxes) != prod(kernel.whole):
        raise PlanError("lacks a part of its grid")
