"""The plan checker: sound plans pass, and every kind of planted fault is found and named."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import small_plans
from random_graphs import programs

from engine import check, ops
from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import PlanError
from engine.graph import Graph, TensorType
from engine.kernels.wgsl import Kernel, bindings
from engine.optim import Adam, Sgd, minimize
from engine.plan import Buffer, Dispatch, Placement, Plan, Slab
from engine.specialize import DeviceFacts
from models.vision import inference_graph, training_graph

SMALL = DeviceFacts()
LARGE = replace(SMALL, max_invocations=1024, max_shared_bytes=49152, max_storage_buffers=16)


@pytest.mark.parametrize("facts", [SMALL, LARGE, replace(SMALL, is_cpu=True)])
@pytest.mark.parametrize("options", [{}, {"optimize": False}, {"alias": False}])
def test_plans_of_the_programs_are_sound(facts: DeviceFacts, options: dict[str, bool]) -> None:
    for graph in (training_graph(Adam()), training_graph(Sgd(), size=32), inference_graph()):
        check_plan(compile_graph(graph, facts, **options), facts)


def test_a_plan_whose_packs_are_cut_is_sound() -> None:
    facts = replace(SMALL, max_binding_bytes=4 << 20)
    check_plan(compile_graph(training_graph(Adam(), depth=1, size=32), facts), facts)


@given(programs(), st.booleans(), st.booleans(), st.booleans())
def test_plans_of_random_graphs_are_sound(
    program: tuple[Graph, dict[str, Any]], optimize: bool, alias: bool, is_cpu: bool
) -> None:
    facts = replace(SMALL, is_cpu=is_cpu)
    check_plan(compile_graph(program[0], facts, optimize=optimize, alias=alias), facts)


# Whole plans, damaged: each fault is one that a wrong planner could make.

TRAIN = small_plans()["train"]


def moved(plan: Plan, buffer: int, place: Placement) -> Plan:
    places = list(plan.placements)
    places[buffer] = place
    return replace(plan, placements=tuple(places))


def launched(plan: Plan, index: int, **changes: Any) -> Plan:
    dispatches = list(plan.dispatches)
    dispatches[index] = replace(dispatches[index], **changes)
    return replace(plan, dispatches=tuple(dispatches))


def single(plan: Plan) -> int:
    """The first launch of one result."""
    return next(i for i, d in enumerate(plan.dispatches) if len(d.writes) == 1)


def update_of(plan: Plan) -> int:
    return next(i for i, d in enumerate(plan.dispatches) if d.kernel.label == "adam_update")


def test_merging_any_two_slabs_of_live_tensors_is_found() -> None:
    """Transients in one slab whose lifetimes, counted here anew, touch: each pair is a fault."""
    used: dict[int, list[int]] = {}
    group = -1
    for index, d in enumerate(TRAIN.dispatches):
        group += index in TRAIN.groups
        for b in d.read_ids() | d.write_ids():
            used.setdefault(b, []).append(group)
    transients = [b.id for b in TRAIN.buffers if b.kind == "transient"]
    found = 0
    for a, b in pairwise(transients):
        place = TRAIN.placements[a]
        roomy = TRAIN.slabs[place.slab].nbytes >= TRAIN.buffers[b].type.nbytes
        together = used[a][0] <= used[b][-1] and used[b][0] <= used[a][-1]
        if roomy and together and place != TRAIN.placements[b]:
            with pytest.raises(PlanError):
                check_plan(moved(TRAIN, b, place))
            found += 1
    assert found > 20


def test_every_launch_left_out_is_found() -> None:
    """Without any one launch something is read, or left at the end, that nothing has written."""
    update = update_of(TRAIN)
    for index in range(len(TRAIN.dispatches)):
        if index == update:
            continue
        kept = TRAIN.dispatches[:index] + TRAIN.dispatches[index + 1 :]
        starts = sorted({s - (s > index) for s in TRAIN.groups} - {len(kept)})
        with pytest.raises(PlanError, match=r"nothing has written|overwritten"):
            check_plan(replace(TRAIN, dispatches=kept, groups=tuple(starts)))


def test_every_lost_barrier_is_found() -> None:
    for start in TRAIN.groups[1:]:
        with pytest.raises(PlanError, match="races"):
            check_plan(replace(TRAIN, groups=tuple(s for s in TRAIN.groups if s != start)))


@pytest.mark.parametrize("groups", [(), (1,), (0, 0), (0, 5, 3), (0, 10_000)])
def test_groups_that_do_not_partition_are_found(groups: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="partition"):
        check_plan(replace(TRAIN, groups=groups))


def swapped(ids: tuple[int, ...]) -> tuple[int, ...]:
    return (ids[1], ids[0], *ids[2:])


def test_packs_in_different_orders_are_found() -> None:
    """Moments of equal sizes in another order: every offset is right, the meaning is not."""
    graph = Graph()
    a, b = (graph.parameter(n, (64,), lambda rng, s: np.ones(s)) for n in "ab")
    loss = ops.reduce_sum(ops.square(ops.add(a, ops.gelu(b))), range(1))
    minimize(loss, Adam())
    plan = compile_graph(graph)
    check_plan(plan)
    index = update_of(plan)
    update = plan.dispatches[index]
    for k, ids in enumerate(update.writes):
        places = list(plan.placements)
        places[ids[0]], places[ids[1]] = places[ids[1]], places[ids[0]]
        writes = tuple(swapped(w) if j == k else w for j, w in enumerate(update.writes))
        broken = launched(replace(plan, placements=tuple(places)), index, writes=writes)
        with pytest.raises(PlanError, match=r"pairs '[ab]' with"):
            check_plan(broken)
    short = update.writes[0], update.writes[1][:1], update.writes[2]
    with pytest.raises(PlanError, match="different lengths"):
        check_plan(launched(plan, index, writes=short))


def test_a_hole_in_a_run_is_found() -> None:
    index = update_of(TRAIN)
    run = TRAIN.dispatches[index].writes[0]
    writes = (run[:3] + run[4:], *TRAIN.dispatches[index].writes[1:])
    with pytest.raises(PlanError, match="does not follow its run"):
        check_plan(launched(TRAIN, index, writes=writes))


FAULTS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "kind": (lambda p: replace(p, slabs=(replace(p.slabs[0], kind="state"), *p.slabs[1:])), "slab"),
    "small slab": (
        lambda p: replace(p, slabs=(replace(p.slabs[0], nbytes=256), *p.slabs[1:])),
        "outside of slab 0",
    ),
    "no slab": (lambda p: moved(p, 3, Placement(len(p.slabs), 0)), "no slab"),
    "negative": (lambda p: moved(p, 3, Placement(p.placements[3].slab, -256)), "outside"),
    "unplaced": (lambda p: replace(p, placements=p.placements[:-1]), "one place"),
    "constant": (lambda p: replace(p, constants={}), "constants"),
    "constant size": (
        lambda p: replace(p, constants={b: v.ravel()[:-1] for b, v in p.constants.items()}),
        "value of another size",
    ),
    "name": (lambda p: replace(p, tensors={**p.tensors, "image": 10_000}), "'image' names no"),
    "type": (
        lambda p: replace(p, types={**p.types, "image": TensorType((3,))}),
        "'image' has another size",
    ),
    "types": (lambda p: replace(p, types={}), "names and types"),
    "numbers": (lambda p: replace(p, buffers=p.buffers[::-1]), "has number"),
    "grid": (
        lambda p: launched(p, 0, kernel=replace(p.dispatches[0].kernel, grid=(65536, 1, 1))),
        "launch 0 .* grid",
    ),
    "unknown tensor": (lambda p: launched(p, single(p), writes=((10_000,),)), "does not exist"),
    "nothing bound": (lambda p: launched(p, single(p), writes=((),)), "nothing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted(fault: str) -> None:
    damage, message = FAULTS[fault]
    with pytest.raises(PlanError, match=message):
        check_plan(damage(TRAIN))


# Small plans written out by hand.


def launch(reads: list[Any], writes: list[Any], body: str = "") -> Dispatch:
    """A launch whose shader writes element 0 of everything writable, unless `body` is given."""
    names = [f"w{k}" for k in range(len(writes))]
    text = bindings([(f"r{k}", "f32") for k in range(len(reads))], [(n, "f32") for n in names])
    body = body or " ".join(f"{n}[0] = 1.0;" for n in names)
    bound = [[(b,) if isinstance(b, int) else b for b in ids] for ids in (reads, writes)]
    return Dispatch(Kernel("k", text + body, (1, 1, 1)), tuple(bound[0]), tuple(bound[1]))


def plan_of(
    kinds: str, places: list[tuple[int, int]], launches: list[Dispatch], **other: Any
) -> Plan:
    """A plan of 64-float tensors; kinds: p(arameter) f(rozen) i(nput) o(utput)
    t(ransient) g(radient)."""
    names = {"p": "parameter", "f": "frozen", "i": "input", "o": "output", "t": "transient"}
    names["g"] = "gradient"
    count = 1 + max(slab for slab, _ in places)
    sizes = [256 + max(o for slab, o in places if slab == k) for k in range(count)]
    first = {slab: names[kind] for kind, (slab, _) in reversed([*zip(kinds, places, strict=True)])}
    fields: dict[str, Any] = {
        "buffers": tuple(
            Buffer(k, f"{kind}{k}", names[kind], TensorType((64,))) for k, kind in enumerate(kinds)
        ),
        "dispatches": tuple(launches),
        "groups": tuple(range(len(launches))),
        "slabs": tuple(Slab(size, first[k]) for k, size in enumerate(sizes)),
        "placements": tuple(Placement(*place) for place in places),
        "tensors": {},
        "types": {},
        "constants": {},
    }
    return Plan(**{**fields, **other})


def renumbered(d: Dispatch) -> Dispatch:
    source = d.kernel.source.replace("@binding(1)", "@binding(2)")
    return replace(d, kernel=replace(d.kernel, source=source))


CHAIN = [launch([0], [1]), launch([1], [2])]
BY_HAND: dict[str, tuple[Plan, str]] = {
    "read and write of a slab": (
        plan_of("tto", [(0, 0), (0, 256), (1, 0)], [launch([], [0]), *CHAIN]),
        "binds slab 0 both",
    ),
    "overlapping writes": (
        plan_of("ioo", [(0, 0), (1, 0), (1, 0)], [launch([0], [1, 2])]),
        "overlapping writable",
    ),
    "partial overlap": (
        plan_of(
            "itto",
            [(0, 0), (1, 0), (1, 256), (2, 0)],
            [launch([0], [1]), launch([0], [2]), launch([1], [3])],
            buffers=tuple(
                Buffer(k, f"{kind[0]}{k}", kind, TensorType((128 if k == 1 else 64,)))
                for k, kind in enumerate(("input", "transient", "transient", "output"))
            ),
        ),
        "launch 2 .k. reads 't1' overwritten by 't2'",
    ),
    "never written": (
        plan_of("ito", [(0, 0), (1, 0), (2, 0)], [launch([0, 1], [2])]),
        "reads 't1', which nothing has written",
    ),
    "updated before written": (
        plan_of("ito", [(0, 0), (1, 0), (2, 0)], [launch([0], [1], "w0[0] += 1.0;"), CHAIN[1]]),
        "reads 't1', which nothing has written",
    ),
    "frozen written": (plan_of("if", [(0, 0), (1, 0)], [launch([0], [1])]), "which is frozen"),
    "output missing": (plan_of("io", [(0, 0), (1, 0)], []), "the run ends with 'o1', which"),
    "output overwritten": (
        plan_of("ioo", [(0, 0), (1, 0), (1, 0)], [launch([0], [1]), launch([0], [2])]),
        "the run ends with 'o1' overwritten by 'o2'",
    ),
    "sources overlap": (plan_of("pp", [(0, 0), (0, 128)], []), "overlaps another"),
    "unaligned": (
        plan_of("io", [(0, 0), (1, 64)], [launch([0], [1])]),
        "'o1' is bound unaligned",
    ),
    "run across slabs": (
        plan_of("ppo", [(0, 0), (1, 0), (2, 0)], [launch([(0, 1)], [2])]),
        "in another slab than its run",
    ),
    "run beyond its slab": (
        plan_of(
            "ppo",
            [(0, 0), (0, 256), (1, 0)],
            [launch([(0, 1)], [2])],
            slabs=(Slab(260, "parameter"), Slab(256, "output")),
            buffers=(
                Buffer(0, "p0", "parameter", TensorType((64,)), "parameter"),
                Buffer(1, "p1", "parameter", TensorType((1,)), "parameter"),
                Buffer(2, "o2", "output", TensorType((64,))),
            ),
        ),
        "reaches beyond slab 0",
    ),
    "race by bytes": (
        plan_of(
            "iooo",
            [(0, 0), (1, 0), (2, 0), (3, 0)],
            [launch([0], [1]), launch([1], [2])],
            groups=(0,),
        ),
        "launch 1 .k. races",
    ),
    "shader without its bindings": (
        plan_of("io", [(0, 0), (1, 0)], [Dispatch(Kernel("k", "", (1, 1, 1)), ((0,),), ((1,),))]),
        "its shader declares",
    ),
    "shader that skips a binding": (
        plan_of("io", [(0, 0), (1, 0)], [renumbered(launch([0], [1]))]),
        "skips a binding",
    ),
    "shader with other access": (
        plan_of(
            "io",
            [(0, 0), (1, 0)],
            [replace(launch([0], [1]), kernel=launch([], [0, 1]).kernel)],
        ),
        "its shader declares read_write read_write",
    ),
}


@pytest.mark.parametrize("fault", BY_HAND)
def test_by_hand(fault: str) -> None:
    plan, message = BY_HAND[fault]
    with pytest.raises(PlanError, match=message):
        check_plan(plan)


def test_what_is_sound_by_hand() -> None:
    check_plan(plan_of("ito", [(0, 0), (1, 0), (2, 0)], CHAIN))
    update = launch([0], [1], "w0[0] += r0[0];")
    check_plan(plan_of("ip", [(0, 0), (1, 0)], [update, update]))
    reuse = [launch([0], [1]), launch([1], [3]), launch([0], [2]), launch([2], [4])]
    check_plan(plan_of("ittoo", [(0, 0), (1, 0), (1, 0), (2, 0), (3, 0)], reuse))


def test_foreign_bytes_in_the_padding_of_a_run_are_found() -> None:
    facts = replace(SMALL, storage_alignment=128)
    buffers = (
        Buffer(0, "g0", "gradient", TensorType((3,)), "gradient"),
        Buffer(1, "g1", "gradient", TensorType((64,)), "gradient"),
        Buffer(2, "g2", "gradient", TensorType((3,))),
        Buffer(3, "o3", "output", TensorType((64,))),
    )
    fields = {"buffers": buffers, "slabs": (Slab(512, "gradient"), Slab(256, "output"))}
    places = [(0, 0), (0, 256), (0, 128), (1, 0)]
    made = [launch([], [b]) for b in range(3)]
    run = launch([(0, 1)], [3])
    with pytest.raises(PlanError, match="foreign bytes behind 'g0'"):
        check_plan(plan_of("gggo", places, [*made, run], **fields), facts)
    sources = {**fields, "buffers": tuple(replace(b, kind="state") for b in buffers[:3])}
    sources["slabs"] = (Slab(512, "state"),)
    with pytest.raises(PlanError, match="'g2' overlaps"):
        check_plan(plan_of("ggg", places[:3], [], **sources), facts)


def test_limits_of_the_device_are_kept() -> None:
    plan = plan_of("io", [(0, 0), (1, 0)], [launch([0], [1])])
    check_plan(plan)
    with pytest.raises(PlanError, match="binds 2 ranges"):
        check_plan(plan, replace(SMALL, max_storage_buffers=1))
    with pytest.raises(PlanError, match="too large"):
        check_plan(plan, replace(SMALL, max_binding_bytes=128))


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("y[i] = 1.0;", False),
        ("y[i + x[3]] = id.y;", False),
        ("y[i] = 1.0; z = y[i];", False),
        ("y[i].x = 1.0;", False),
        ("// y[i] is\ny[i] = 1.0;", False),
        ("my = 1; x.y = 2; y[0] = 1.0;", False),
        ("let y = x[0]; fn f(y: u32) {} z = y * 2;", False),
        ("", False),
        ("y[i] += 1.0;", True),
        ("y[i] = y[i] + 1.0;", True),
        ("let a = y[i]; y[i] = a;", True),
        ("if (y[i] == 0.0) { y[i] = 1.0; }", True),
        ("f(&y);", True),
    ],
)
def test_first_uses_in_shaders(body: str, reads: bool) -> None:
    source = bindings([("x", "u32")], [("y", "f32")]) + body
    assert check._reads_first(source, "y") == reads
