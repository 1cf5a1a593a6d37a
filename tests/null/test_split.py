"""Splitting long launches: parts tile grids within the cap, or the cap is refused; the judge."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import assert_same_plan, small_plans

from engine.check import check_plan
from engine.chunks import cut, estimated_costs
from engine.errors import KernelTooLong, PlanError
from engine.kernels.wgsl import Grid, Kernel
from engine.plan import Dispatch, Plan
from engine.serialize import dump_plan, load_plan
from engine.split import MAX_PARTS, split_costs, split_plan

TRAIN = small_plans()["train"]
CAP = 1e6


def with_grids(grids: list[Grid]) -> Plan:
    """The training program, its first launches of these grids: no judge knows what a grid does."""
    dispatches = [
        replace(d, kernel=replace(d.kernel, grid=grid))
        for d, grid in zip(TRAIN.dispatches, grids, strict=False)
    ]
    return replace(TRAIN, dispatches=(*dispatches, *TRAIN.dispatches[len(grids) :]))


def costs_of(plan: Plan, costs: list[float]) -> list[float]:
    """Costs of the first launches; the others keep any cap here."""
    return costs + [1.0] * (len(plan.dispatches) - len(costs))


def boxes(dispatches: tuple[Dispatch, ...]) -> list[tuple[slice, ...]]:
    kernels = [d.kernel for d in dispatches]
    return [
        tuple(slice(n, n + extent) for n, extent in zip(k.base, k.grid, strict=True))
        for k in kernels
    ]


EXTENTS = st.integers(1, 12)
GRIDS = st.tuples(EXTENTS, EXTENTS, EXTENTS) | st.tuples(st.integers(1, 65535), *[st.just(1)] * 2)
LAUNCHES = st.lists(st.tuples(GRIDS, st.floats(0, 300 * CAP)), min_size=1, max_size=4)


@given(LAUNCHES)
def test_parts_cover_grids_once_in_order_within_the_cap_or_it_is_refused(
    launches: list[tuple[Grid, float]],
) -> None:
    grids, costs = [grid for grid, _ in launches], [cost for _, cost in launches]
    plan = with_grids(grids)
    all_costs = costs_of(plan, costs)
    try:
        split = split_plan(plan, all_costs, CAP)
    except KernelTooLong:
        single = any(cost > CAP * prod(grid) * (1 - 1e-9) for grid, cost in launches)
        many = any(cost > CAP * MAX_PARTS / 4 for cost in costs)
        assert single or many
        return
    expected = split_costs(plan, all_costs, CAP)
    assert len(expected) == len(split.dispatches)
    assert max(expected) <= CAP * (1 + 1e-9)
    ranges = split.launches()
    assert len(ranges) == len(plan.dispatches)
    for old, cost, part in zip(plan.dispatches, all_costs, ranges, strict=True):
        parts = split.dispatches[part.start : part.stop]
        assert all((p.reads, p.writes) == (old.reads, old.writes) for p in parts)
        assert all(p.kernel.source == old.kernel.source for p in parts)
        assert sum(p.kernel.flops for p in parts) == old.kernel.flops
        assert sum(expected[part.start : part.stop]) == pytest.approx(cost)
        if cost <= CAP:
            assert parts == (old,)
            continue
        done = np.zeros(old.kernel.grid, int)
        for box in boxes(parts):
            done[box] += 1
        assert np.all(done == 1)
    assert [ranges[index].start for index in plan.groups] == list(split.groups)
    check_plan(split)
    assert_same_plan(load_plan(dump_plan(split)), split)


@given(GRIDS, st.integers(2, 40))
def test_parts_along_one_axis_are_near_equal_and_as_few_as_can_be(grid: Grid, wanted: int) -> None:
    plan = with_grids([grid])
    most = prod(grid) // wanted
    if not any(most * extent // prod(grid) for extent in grid):
        return
    split = split_plan(plan, costs_of(plan, [wanted * CAP]), CAP)
    parts = [d.kernel for d in split.dispatches[: split.launches()[0].stop]]
    (axis,) = {a for part in parts for a in range(3) if part.grid[a] != grid[a]}
    layers = [part.grid[axis] for part in parts]
    assert [part.base[axis] for part in parts] == [*accumulate(layers[:-1], initial=0)]
    assert max(layers) - min(layers) <= 1
    for extent in grid:
        fit = most * extent // prod(grid)
        assert fit == 0 or len(parts) <= -(-extent // fit)


def test_the_outermost_of_equal_axes_is_cut() -> None:
    plan = with_grids([(8, 8, 8), (64, 2, 3), (5, 7, 1)])
    split = split_plan(plan, costs_of(plan, [4 * CAP, 2 * CAP, 7 * CAP]), CAP)
    grids = [d.kernel.grid for d in split.dispatches[:13]]
    assert grids == [(8, 8, 2)] * 4 + [(64, 1, 3)] * 2 + [(5, 1, 1)] * 7


def test_a_grid_without_a_long_axis_is_cut_along_two() -> None:
    plan = with_grids([(3, 4, 1)])
    split = split_plan(plan, costs_of(plan, [6 * CAP]), CAP)
    assert [d.kernel.grid for d in split.dispatches[:8]] == [(1, 1, 1), (2, 1, 1)] * 4
    check_plan(split)


@given(st.integers(2, 6), st.integers(2, 6), st.sampled_from([(40, 1, 1), (6, 6, 1), (4, 5, 6)]))
def test_what_was_split_can_be_measured_and_split_again(once: int, again: int, grid: Grid) -> None:
    plan = with_grids([grid])
    first = split_plan(plan, costs_of(plan, [once * CAP]), CAP)
    count = first.launches()[0].stop
    costs = costs_of(first, [1.0, CAP * min(again, prod(first.dispatches[1].kernel.grid))])
    second = split_plan(first, costs, CAP)
    assert len(second.launches()) == len(plan.dispatches)
    assert second.launches()[0].stop > count
    check_plan(second)
    assert max(split_costs(first, costs, CAP)) <= CAP * (1 + 1e-9)


def test_a_high_cap_changes_nothing() -> None:
    costs = estimated_costs(TRAIN)
    assert_same_plan(split_plan(TRAIN, costs, max(costs)), TRAIN)
    assert split_costs(TRAIN, costs, max(costs)) == costs


def test_parts_share_the_estimated_costs_of_their_launch() -> None:
    plan = with_grids([(100, 1, 1)])
    split = split_plan(plan, costs_of(plan, [4 * CAP]), CAP)
    whole, parts = estimated_costs(plan)[0], estimated_costs(split)[:4]
    launch = min(estimated_costs(plan, is_cpu=False))
    assert whole <= sum(parts) <= whole + 4 * launch
    assert max(parts) == pytest.approx(min(parts), rel=0.01)


def test_chunks_of_a_split_plan_are_finer() -> None:
    """One launch takes most of the time: only its parts can be shared between chunks."""
    plan = with_grids([(100, 1, 1)])
    costs = costs_of(plan, [20 * CAP])
    parts = split_costs(plan, costs, CAP)

    def longest(costs: list[float]) -> float:
        return max(sum(costs[first:last]) for first, last in cut(costs, 10))

    assert longest(costs) >= 20 * CAP
    assert longest(parts) <= 3.1 * CAP


# Refusals


@pytest.mark.parametrize(
    "grid, milliseconds, reason",
    [
        ((1, 1, 1), 41.2, "it is a single workgroup"),
        ((2, 3, 1), 12, "each of its 6 workgroups takes 2 ms"),
        ((65535, 1, 1), 400, f"it would take more than {MAX_PARTS} parts"),
        ((250, 250, 250), 255.9, f"it would take more than {MAX_PARTS} parts"),
    ],
)
def test_what_cannot_be_split_enough_is_told(grid: Grid, milliseconds: float, reason: str) -> None:
    plan = with_grids([(1, 1, 1), (1, 1, 1), grid])
    label = plan.dispatches[2].kernel.label
    with pytest.raises(KernelTooLong) as told:
        split_plan(plan, costs_of(plan, [1.0, 1.0, milliseconds * 1e6]), CAP)
    assert str(told.value) == (
        f"launch 2 ({label}) takes {milliseconds:.3g} ms, the cap is 1 ms, and it cannot be split "
        f"enough: {reason}; raise --max-kernel-ms"
    )


def test_a_shader_that_takes_no_base_is_told() -> None:
    """An op from outside may bring its own entry point, which matters above the cap only."""
    foreign = Kernel("foreign", "@compute @workgroup_size(1) fn main() {}", (64, 1, 1))
    plan = replace(TRAIN, dispatches=(replace(TRAIN.dispatches[0], kernel=foreign),), groups=(0,))
    assert split_plan(plan, [CAP], CAP) == plan
    with pytest.raises(KernelTooLong, match=r"\(foreign\).* cannot start at a later workgroup"):
        split_plan(plan, [2 * CAP], CAP)
    with pytest.raises(ValueError, match="foreign cannot be cut"):
        foreign.part(0, 0, 2)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_caps_that_are_not_positive_are_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        split_plan(TRAIN, costs_of(TRAIN, []), cap)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_costs_that_fit_no_plan_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        split_costs(TRAIN, costs_of(TRAIN, [bad]), CAP)
    with pytest.raises(ValueError, match=rf"1 costs for {len(TRAIN.dispatches)} dispatches"):
        split_plan(TRAIN, [1.0], CAP)


@pytest.mark.parametrize("first, count", [(-1, 2), (0, 0), (3, 3), (5, 1)])
def test_layers_that_a_grid_lacks_are_refused(first: int, count: int) -> None:
    kernel = with_grids([(5, 1, 1)]).dispatches[0].kernel
    with pytest.raises(ValueError, match="no layers"):
        kernel.part(0, first, count)


def test_every_kernel_of_the_programs_takes_a_base() -> None:
    for plan in small_plans().values():
        assert all(d.kernel.takes_base for d in plan.dispatches)


# The judge: parts 0 to 3 of launch 0 lie first in the plan.

PLAN = with_grids([(8, 4, 1)])
SPLIT = split_plan(PLAN, costs_of(PLAN, [4 * CAP]), CAP)
SOURCE = SPLIT.dispatches[0].kernel.source


def changed(index: int, **changes: object) -> Plan:
    dispatches = list(SPLIT.dispatches)
    kernel = replace(dispatches[index].kernel, **changes)
    dispatches[index] = replace(dispatches[index], kernel=kernel)
    return replace(SPLIT, dispatches=tuple(dispatches))


def without(index: int) -> Plan:
    kept = SPLIT.dispatches[:index] + SPLIT.dispatches[index + 1 :]
    return replace(SPLIT, dispatches=kept, groups=tuple(s - (s > index) for s in SPLIT.groups))


def regrouped() -> Plan:
    return replace(SPLIT, groups=tuple(sorted({*SPLIT.groups, 2})))


def for_all(edit: Callable[[str], str]) -> Plan:
    kernels = [replace(d.kernel, source=edit(d.kernel.source)) for d in SPLIT.dispatches[:4]]
    dispatches = [replace(d, kernel=k) for d, k in zip(SPLIT.dispatches, kernels, strict=False)]
    return replace(SPLIT, dispatches=(*dispatches, *SPLIT.dispatches[4:]))


FAULTS: dict[str, tuple[Callable[[], Plan], str]] = {
    "a part is missing": (lambda: without(2), "lacks a part"),
    "the first part is missing": (lambda: without(0), "lacks a part"),
    "a part is done twice": (lambda: changed(1, base=(0, 0, 0)), "overlap"),
    "a part is too wide": (lambda: changed(1, grid=(8, 2, 1)), "overlap"),
    "a part is too narrow": (lambda: changed(1, grid=(7, 1, 1)), "lacks a part"),
    "a part is outside": (lambda: changed(3, base=(0, 4, 0)), "outside of its grid"),
    "a barrier within a launch": (regrouped, "lacks a part"),
    "another shader": (lambda: changed(1, source="// " + SOURCE), "lacks a part"),
    "a base without a grid": (lambda: changed(7, base=(1, 0, 0)), "no part of one"),
    "no base in the shader": (
        lambda: for_all(lambda source: source.replace("override base_y", "const base_y")),
        "counts workgroups from zero",
    ),
    "the number of workgroups in the shader": (
        lambda: for_all(lambda source: source + "// num_workgroups"),
        "counts workgroups from zero",
    ),
}


def test_the_judged_plan_is_sound() -> None:
    check_plan(SPLIT)
    starts = list(accumulate((len(r) for r in SPLIT.launches()), initial=0))
    assert list(pairwise(starts)) == [(r.start, r.stop) for r in SPLIT.launches()]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_judge_finds(fault: str) -> None:
    damaged, message = FAULTS[fault]
    with pytest.raises(PlanError, match=message):
        check_plan(damaged())


def test_the_judge_finds_parts_with_other_bindings() -> None:
    """They are another launch then, and both write the same."""
    dispatches = list(SPLIT.dispatches)
    first = dispatches[1]
    other = next(d.reads[0] for d in SPLIT.dispatches if d.reads and d.reads[0] != first.reads[0])
    dispatches[1] = replace(first, reads=(other, *first.reads[1:]))
    with pytest.raises(PlanError):
        check_plan(replace(SPLIT, dispatches=tuple(dispatches)))


def test_lost_barriers_of_a_split_plan_are_found() -> None:
    for start in SPLIT.groups[1:]:
        with pytest.raises(PlanError, match="races"):
            check_plan(replace(SPLIT, groups=tuple(s for s in SPLIT.groups if s != start)))
