"""Memory planning, judged by a checker that replays the plan and knows nothing of lifetimes."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import programs

from engine import ops
from engine.compile import compile_graph
from engine.errors import PlanError
from engine.graph import Graph, TensorType
from engine.kernels.wgsl import Kernel
from engine.memory import aligned, pack_runs, plan_memory
from engine.optim import Adam
from engine.plan import Buffer, Dispatch, Placement, Plan, Slab
from engine.schedule import schedule
from engine.specialize import DeviceFacts
from models.vision import inference_graph, training_graph

KERNEL = Kernel("k", "", (1, 1, 1))
LIMIT = 1 << 20


def check_plan(
    buffers: tuple[Buffer, ...],
    dispatches: tuple[Dispatch, ...],
    starts: tuple[int, ...],
    slabs: tuple[Slab, ...],
    placements: tuple[Placement, ...],
) -> None:
    """Replay group by group: what a launch reads must be what was last put there."""
    transient = {b.id for b in buffers if b.kind == "transient"}
    for buffer, place in zip(buffers, placements, strict=True):
        assert place.offset % 256 == 0
        assert place.offset + buffer.type.nbytes <= slabs[place.slab].nbytes
        assert slabs[place.slab].kind == buffer.kind
    spans = sorted(
        (placements[b.id].slab, placements[b.id].offset, b.type.nbytes)
        for b in buffers
        if b.id not in transient
    )
    for (slab, offset, nbytes), after in pairwise(spans):
        assert after[0] != slab or after[1] >= offset + nbytes, "persistent tensors overlap"
    content: dict[int, int] = {}
    for first, last in pairwise([*starts, len(dispatches)]):
        group = dispatches[first:last]
        live = {b for d in group for b in d.read_ids() | d.write_ids()} & transient
        assert len({placements[b].slab for b in live}) == len(live), "a slab serves two at once"
        for dispatch in group:
            for b in dispatch.read_ids() & transient:
                assert content.get(placements[b].slab) == b, "read after it was overwritten"
        for dispatch in group:
            for b in dispatch.write_ids() & transient:
                content[placements[b].slab] = b
    for dispatch in dispatches:
        read = {placements[b].slab for b in dispatch.read_ids()}
        assert not read & {placements[b].slab for b in dispatch.write_ids()}


def check(plan: Plan) -> None:
    check_plan(plan.buffers, plan.dispatches, plan.groups, plan.slabs, plan.placements)


@st.composite
def transients(draw: Any) -> tuple[list[Buffer], list[Dispatch]]:
    """Launches that each make a transient from earlier ones, some updated in place later."""
    sizes = draw(st.lists(st.sampled_from((1, 3, 64, 65, 100, 1000)), min_size=1, max_size=25))
    buffers = [Buffer(i, "", "transient", TensorType((s,))) for i, s in enumerate(sizes)]
    dispatches = []
    for i in range(len(buffers)):
        recent = st.integers(max(0, i - 6), max(0, i - 1))
        reads = draw(st.lists(recent, max_size=3, unique=True)) if i else []
        writes = [i]
        if reads and draw(st.integers(0, 5)) == 0:
            writes.append(reads.pop())
        dispatches.append(Dispatch(KERNEL, tuple((b,) for b in reads), tuple((b,) for b in writes)))
    return buffers, dispatches


@given(transients(), st.booleans())
def test_transients_that_live_together_never_share(
    program: tuple[list[Buffer], list[Dispatch]], alias: bool
) -> None:
    buffers, dispatches = program
    order, starts = schedule(dispatches)
    slabs, placements = plan_memory(buffers, order, starts, LIMIT, alias=alias)
    check_plan(tuple(buffers), order, starts, slabs, placements)
    if not alias:
        assert len({p.slab for p in placements}) == len(buffers) == len(slabs)


@given(transients())
def test_aliasing_never_costs_memory(program: tuple[list[Buffer], list[Dispatch]]) -> None:
    buffers, dispatches = program
    order, starts = schedule(dispatches)
    shared, own = (
        sum(s.nbytes for s in plan_memory(buffers, order, starts, LIMIT, alias=alias)[0])
        for alias in (True, False)
    )
    assert shared <= own


def test_a_chain_lives_in_two_slabs() -> None:
    buffers = [Buffer(i, "", "transient", TensorType((100 + i,))) for i in range(20)]
    dispatches = [Dispatch(KERNEL, ((i - 1,),) if i else (), ((i,),)) for i in range(len(buffers))]
    order, starts = schedule(dispatches)
    slabs, _ = plan_memory(buffers, order, starts, LIMIT)
    assert len(slabs) == 2


def test_the_checker_sees_a_planted_overlap() -> None:
    buffers = tuple(Buffer(i, "", "transient", TensorType((64,))) for i in range(3))
    dispatches = (
        Dispatch(KERNEL, (), ((0,),)),
        Dispatch(KERNEL, (), ((1,),)),
        Dispatch(KERNEL, ((0,), (1,)), ((2,),)),
    )
    slabs = (Slab(256, "transient"),) * 2
    places = tuple(Placement(slab, 0) for slab in (0, 0, 1))
    with pytest.raises(AssertionError, match="two at once"):
        check_plan(buffers, dispatches, (0, 2), slabs, places)
    late = (*dispatches[:2], Dispatch(KERNEL, ((0,),), ((2,),)))
    with pytest.raises(AssertionError, match="overwritten"):
        check_plan(buffers, late, (0, 1, 2), slabs, places)


@given(st.lists(st.integers(1, 5000), max_size=20), st.integers(256, 20_000))
def test_packs_are_cut_into_runs_within_the_limit(sizes: list[int], limit: int) -> None:
    runs = pack_runs(sizes, limit)
    assert [i for first, last in runs for i in range(first, last)] == list(range(len(sizes)))
    for first, last in runs:
        total = sum(aligned(s) for s in sizes[first:last])
        assert last > first and (total <= limit or last - first == 1)
        if last < len(sizes):
            assert total + aligned(sizes[last]) > limit, "the next tensor would have fitted"


@given(st.lists(st.integers(1, 600), min_size=1, max_size=12), st.sampled_from((2560, LIMIT)))
def test_packs_are_contiguous_aligned_and_laid_out_alike(sizes: list[int], limit: int) -> None:
    packs = ("parameter", "gradient", "adam_m")
    kinds = ("parameter", "gradient", "state")
    buffers = [
        Buffer(i, str(i), kinds[i % 3], TensorType((sizes[i // 3],)), packs[i % 3])
        for i in range(3 * len(sizes))
    ]
    slabs, placements = plan_memory(buffers, [], (), limit)
    check_plan(tuple(buffers), (), (), slabs, placements)
    for k in range(3):
        own = placements[k::3]
        for before, after, size in zip(own, own[1:], sizes, strict=False):
            if before.slab == after.slab:
                assert after.offset == before.offset + -(-4 * size // 256) * 256
            else:
                assert after.offset == 0
        assert [p.offset for p in own] == [p.offset for p in placements[::3]]
        base = [p.slab - own[0].slab for p in own]
        assert base == [p.slab - placements[0].slab for p in placements[::3]]


def test_a_transient_that_nothing_uses_is_refused() -> None:
    with pytest.raises(PlanError, match="never used"):
        plan_memory([Buffer(0, "", "transient", TensorType((1,)))], [], (), LIMIT)


def test_a_slab_bound_for_reading_and_writing_is_refused() -> None:
    buffers = [Buffer(i, str(i), "parameter", TensorType((1,)), "parameter") for i in range(2)]
    with pytest.raises(PlanError, match="k binds a slab"):
        plan_memory(buffers, [Dispatch(KERNEL, ((0,),), ((1,),))], (0,), LIMIT)


@given(programs())
def test_plans_of_random_graphs_hold(program: tuple[Graph, dict[str, Any]]) -> None:
    for optimize in (True, False):
        check(compile_graph(program[0], optimize=optimize))


SMALL = DeviceFacts()
LARGE = replace(SMALL, max_invocations=1024, max_shared_bytes=49152, max_storage_buffers=16)


@pytest.mark.parametrize("facts", [SMALL, LARGE, replace(SMALL, is_cpu=True)])
def test_plans_of_the_models_hold(facts: DeviceFacts) -> None:
    for graph in (training_graph(Adam()), inference_graph()):
        plan = compile_graph(graph, facts)
        check(plan)
        for dispatch in plan.dispatches:
            assert len(dispatch.reads) + len(dispatch.writes) <= facts.max_storage_buffers
            assert max(dispatch.kernel.grid) <= 65535
        report = plan.memory_report()
        assert report["transient"]["physical"] < report["transient"]["logical"] / 2
        own = compile_graph(graph, facts, alias=False).memory_report()["transient"]
        assert own["physical"] >= own["logical"]


def test_a_pack_beyond_the_binding_limit_is_updated_in_runs() -> None:
    graph = training_graph(Adam(), depth=1, size=32)
    facts = replace(SMALL, max_binding_bytes=4 << 20)
    plan = compile_graph(graph, facts)
    check(plan)
    updates = [d for d in plan.dispatches if d.kernel.label == "adam_update"]
    assert len(updates) > 1
    for kind in ("parameter", "gradient"):
        slabs = [slab for slab in plan.slabs if slab.kind == kind]
        assert len(slabs) == len(updates)
        assert all(slab.nbytes <= facts.max_binding_bytes for slab in slabs)
    for update in updates:
        for binding in (update.reads[1], *update.writes):
            assert len({plan.placements[b].slab for b in binding}) == 1
    updated = [b for update in updates for b in update.writes[0]]
    assert sorted(updated) == [b.id for b in plan.buffers if b.kind == "parameter"]


def test_a_tensor_that_no_binding_can_hold_is_refused() -> None:
    graph = Graph()
    graph.output("y", ops.gelu(graph.input("x", (1 << 20,))))
    with pytest.raises(PlanError, match="4194304"):
        compile_graph(graph, replace(SMALL, max_binding_bytes=1 << 20))


def test_a_graph_without_launches_has_a_plan() -> None:
    graph = Graph()
    graph.output("y", graph.input("x", (3,)))
    plan = compile_graph(graph)
    check(plan)
    assert plan.dispatches == () and plan.groups == ()
