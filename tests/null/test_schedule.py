"""Scheduling: levels, barrier groups, and the detection of planted races."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PlanError
from engine.kernels.wgsl import Kernel
from engine.plan import Dispatch
from engine.schedule import schedule, verify_groups

KERNEL = Kernel("k", "", (1, 1, 1))


def launch(reads: list[int], writes: list[int]) -> Dispatch:
    return Dispatch(KERNEL, tuple((b,) for b in reads), tuple((b,) for b in writes))


@st.composite
def programs(draw: Any) -> list[Dispatch]:
    """Launches over few buffers: reads after writes, overwrites and updates in place abound."""
    buffers = st.integers(0, 7)
    result = []
    for _ in range(draw(st.integers(1, 25))):
        writes = draw(st.lists(buffers, min_size=1, max_size=2, unique=True))
        reads = [b for b in draw(st.lists(buffers, max_size=3, unique=True)) if b not in writes]
        result.append(launch(reads, writes))
    return result


def conflict(a: Dispatch, b: Dispatch) -> bool:
    """Whether the order of two launches matters."""
    touched = b.read_ids() | b.write_ids()
    return bool(a.write_ids() & touched) or bool(a.read_ids() & b.write_ids())


def groups_of(order: tuple[Dispatch, ...], starts: tuple[int, ...]) -> dict[int, int]:
    """Group number by identity of the launch."""
    return {id(d): sum(start <= i for start in starts) - 1 for i, d in enumerate(order)}


@given(programs())
def test_groups_are_the_longest_chains_of_conflicts(program: list[Dispatch]) -> None:
    order, starts = schedule(program)
    assert sorted(map(id, order)) == sorted(map(id, program))
    group = groups_of(order, starts)
    for later, dispatch in enumerate(program):
        before = [group[id(other)] for other in program[:later] if conflict(other, dispatch)]
        assert group[id(dispatch)] == max(before, default=-1) + 1
    verify_groups(order, starts)


@given(programs())
def test_order_within_a_group_is_program_order(program: list[Dispatch]) -> None:
    order, starts = schedule(program)
    place = {id(d): i for i, d in enumerate(program)}
    for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
        positions = [place[id(d)] for d in order[first:last]]
        assert positions == sorted(positions)


@given(programs(), st.data())
def test_removing_any_barrier_is_noticed(program: list[Dispatch], data: st.DataObject) -> None:
    order, starts = schedule(program)
    if len(starts) < 2:
        return
    removed = data.draw(st.integers(1, len(starts) - 1))
    with pytest.raises(PlanError, match="races"):
        verify_groups(order, starts[:removed] + starts[removed + 1 :])


@pytest.mark.parametrize(
    "pair",
    [
        [launch([0], [1]), launch([1], [2])],
        [launch([1], [2]), launch([0], [1])],
        [launch([0], [1]), launch([0], [1])],
        [launch([], [1]), launch([], [1])],
    ],
    ids=["read after write", "write after read", "write after write", "two updates"],
)
def test_planted_races_are_noticed(pair: list[Dispatch]) -> None:
    with pytest.raises(PlanError, match="k races"):
        verify_groups(pair, (0,))
    verify_groups(pair, (0, 1))


def test_independent_launches_share_a_group() -> None:
    order, starts = schedule([launch([0], [1]), launch([1], [2]), launch([0], [3])])
    assert starts == (0, 2)
    assert [d.write_ids() for d in order] == [{1}, {3}, {2}]
