"""Cutting a dispatch list: properties over random costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ops
from engine.chunks import CPU_COSTS, GPU_COSTS, cut, estimated_costs
from engine.compile import compile_graph
from engine.graph import Graph
from engine.specialize import DeviceFacts

COSTS = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60)


@given(COSTS, st.integers(1, 80))
def test_chunks_cover_everything_in_order_and_none_is_empty(
    costs: list[float], chunks: int
) -> None:
    ranges = cut(costs, chunks)
    assert [i for first, last in ranges for i in range(first, last)] == list(range(len(costs)))
    assert all(first < last for first, last in ranges)
    assert len(ranges) == min(chunks, len(costs))


@given(COSTS, st.integers(1, 80))
def test_no_chunk_exceeds_its_share_by_more_than_one_dispatch(
    costs: list[float], chunks: int
) -> None:
    share = sum(costs) / min(chunks, len(costs))
    for first, last in cut(costs, chunks):
        assert sum(costs[first:last]) <= (share + max(costs)) * (1 + 1e-9)


@given(st.integers(1, 20), st.integers(1, 20), st.floats(1.0, 1e6))
def test_equal_costs_are_cut_equally(chunks: int, each: int, cost: float) -> None:
    assert {last - first for first, last in cut([cost] * (chunks * each), chunks)} == {each}


def test_boundaries_are_nearest_to_their_share() -> None:
    assert cut([1, 1, 1, 9], 2) == [(0, 3), (3, 4)]
    assert cut([9, 1, 1, 1], 2) == [(0, 1), (1, 4)]
    assert cut([1, 8, 1, 8, 1, 8], 3) == [(0, 2), (2, 4), (4, 6)]
    assert cut([0, 0, 0], 2) == [(0, 1), (1, 3)]


def test_nothing_to_cut_gives_no_chunks() -> None:
    assert cut([], 3) == []


@pytest.mark.parametrize("chunks", [0, -1])
def test_chunk_counts_below_one_are_refused(chunks: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {chunks}"):
        cut([1.0, 2.0], chunks)


@pytest.mark.parametrize("is_cpu", [False, True])
def test_estimates_grow_with_work_and_never_fall_below_a_launch(is_cpu: bool) -> None:
    launch = (CPU_COSTS if is_cpu else GPU_COSTS).launch_ns
    graph = Graph()
    small, large = graph.input("small", (8, 8)), graph.input("large", (1024, 1024))
    graph.output("a", ops.matmul(small, small))
    graph.output("b", ops.matmul(large, large))
    graph.output("c", ops.softmax(large))
    # Independent launches stay apart on a CPU.
    plan = compile_graph(graph, DeviceFacts(is_cpu=True))
    costs = estimated_costs(plan, is_cpu=is_cpu)
    assert len(costs) == len(plan.dispatches) and min(costs) >= launch
    by_label = dict(zip((d.kernel.label for d in plan.dispatches), costs, strict=True))
    cheap = next(v for k, v in by_label.items() if "8x8x8" in k)
    dear = next(v for k, v in by_label.items() if "1024x1024x1024" in k)
    assert cheap < 1.1 * launch
    assert dear > by_label["softmax"] > cheap
