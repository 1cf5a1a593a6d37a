"""Independent launches as one: what is merged, what may not be, and that plans stay right."""

from dataclasses import replace

import pytest
from hypothesis import given
from test_schedule import groups_of, programs

from engine import ops
from engine.check import check_plan
from engine.compile import compile_graph
from engine.graph import Graph, Node, TensorType
from engine.kernels.merged import SEPARATOR, Bound, common_size, merged, shared_bytes, workgroup_of
from engine.kernels.wgsl import (
    F16_HEADER,
    Kernel,
    bindings,
    entry_point,
    linear_grid,
    linear_main,
)
from engine.merge import merge
from engine.optim import keep_gradients
from engine.plan import Buffer, Dispatch
from engine.schedule import schedule, verify_groups
from engine.specialize import DeviceFacts

GPU = DeviceFacts(max_storage_buffers=16)


def adding(threads: int, workgroup: int = 64) -> Kernel:
    body = "    y[i] = x[i] + 1.0;"
    source = bindings([("x", "f32")], [("y", "f32")]) + linear_main(threads, workgroup, body)
    return Kernel("add", source, linear_grid(threads, workgroup), threads)


def waiting(workgroup: int, shared: int = 64) -> Kernel:
    source = bindings([("x", "f32")], [("y", "f32")])
    source += f"var<workgroup> all: array<vec4<f32>, {shared}>;\n"
    body = "all[t].x = x[t]; workgroupBarrier(); y[t] = all[0].x;"
    return Kernel("wait", source + entry_point(workgroup, body), (1, 1, 1), 9)


def by_units(workgroup: int) -> Kernel:
    kernel = waiting(workgroup)
    return replace(kernel, source=F16_HEADER + kernel.source)


def one_word(workgroup: int) -> Kernel:
    kernel = waiting(workgroup)
    return replace(kernel, source="var<workgroup> once: u32;\n" + kernel.source)


def buffers(*kinds: str) -> list[Buffer]:
    packs = {"gradient", "parameter"}
    return [
        Buffer(k, "", kind, TensorType((256,)), kind if kind in packs else "")
        for k, kind in enumerate(kinds)
    ]


def launch(kernel: Kernel, read: int, write: int) -> Dispatch:
    return Dispatch(kernel, ((read,),), ((write,),))


@pytest.mark.parametrize(
    ("pair", "together"),
    [
        ((waiting(64), waiting(64)), True),
        ((waiting(64), waiting(128)), False),
        ((waiting(128), adding(100)), True),
        ((waiting(32), adding(100)), True),
        ((waiting(48), adding(100)), False),
        ((waiting(64, 900), waiting(64, 900)), True),
        ((waiting(64, 900), waiting(64, 901)), True),
        ((waiting(64, 900), waiting(64, 1025)), False),
        ((adding(100), Kernel("foreign", "fn main() {}", (1, 1, 1))), False),
        ((adding(100), by_units(64)), True),
        ((waiting(64), by_units(64)), True),
        ((one_word(64), by_units(64)), False),
    ],
    ids=[
        "alike",
        "sizes",
        "wider",
        "narrower",
        "odd",
        "one memory",
        "longer",
        "beyond",
        "foreign",
        "f16",
    ]
    + ["f16 after 16 bytes", "f16 after 4"],
)
def test_which_kernels_fit_together(pair: tuple[Kernel, Kernel], together: bool) -> None:
    known = buffers(*["transient"] * 4)
    group = [launch(pair[0], 0, 1), launch(pair[1], 2, 3)]
    dispatches, starts = merge(group, (0,), known, GPU)
    assert len(dispatches) == (1 if together else 2) and starts == (0,)
    assert {b for d in dispatches for b in d.write_ids()} == {1, 3}
    assert all(d.kernel.source.find(F16_HEADER) in (-1, 0) for d in dispatches)


@pytest.mark.parametrize(
    ("first", "second", "facts", "together"),
    [
        ((0, 2), (1, 3), GPU, True),
        ((4, 2), (4, 3), GPU, True),
        ((0, 2), (3, 1), GPU, False),
        ((0, 2), (1, 3), replace(GPU, max_storage_buffers=3), False),
    ],
    ids=["one pack written", "one read, one written", "a pack read and written", "bindings"],
)
def test_what_a_launch_may_bind(
    first: tuple[int, int], second: tuple[int, int], facts: DeviceFacts, together: bool
) -> None:
    known = buffers("transient", "transient", "gradient", "gradient", "parameter")
    group = [launch(adding(64), *first), launch(adding(64), *second)]
    assert len(merge(group, (0,), known, facts)[0]) == (1 if together else 2)


def test_what_two_read_is_bound_once_and_groups_stay_apart() -> None:
    known = buffers(*["transient"] * 5)
    one = adding(64)
    program = [launch(one, 0, 1), launch(one, 0, 2), launch(one, 1, 3), launch(one, 2, 4)]
    dispatches, starts = merge(program, (0, 2), known, GPU)
    assert starts == (0, 1)
    assert [(d.reads, d.writes) for d in dispatches] == [
        (((0,),), ((1,), (2,))),
        (((1,), (2,)), ((3,), (4,))),
    ]
    assert all(d.kernel.grid == (2, 1, 1) and d.kernel.flops == 128 for d in dispatches)


def test_sizes_and_memory() -> None:
    assert common_size([adding(10), waiting(128), adding(10, 256)]) == 128
    assert [workgroup_of(k) for k in (adding(10), waiting(32))] == [64, 32]
    assert shared_bytes([waiting(64, 10), waiting(64, 10), adding(10), waiting(64, 11)]) == 16 * 11
    with pytest.raises(ValueError, match="wait and wait have no common size"):
        merged((waiting(32), waiting(64)), ((Bound(0, False), Bound(1, True)),) * 2)
    with pytest.raises(ValueError, match="part of a launch"):
        merged((adding(200).part(0, 1, 2),) * 2, ((Bound(0, False), Bound(1, True)),) * 2)


@pytest.mark.parametrize("facts", [DeviceFacts(), GPU], ids=["8 buffers", "16 buffers"])
def test_plans_are_right_and_shorter(facts: DeviceFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph()
    x = graph.input("x", (20, 96))

    def parameter(name: str, *shape: int) -> Node:
        return graph.parameter(name, shape, lambda rng, s: rng.normal(0, 1, s))

    norm = ops.layer_norm(x, parameter("w", 96), parameter("b", 96), eps=1e-5)
    hidden = ops.gelu(ops.linear(norm, parameter("up", 64, 96), parameter("up_b", 64)))
    y = ops.linear(hidden, parameter("down", 96, 64), parameter("down_b", 96))
    keep_gradients(graph.output("loss", ops.mse(y, x)))
    plan = compile_graph(graph, facts)
    check_plan(plan, facts)
    monkeypatch.setattr("engine.merge.MOST_PARTS", 1)
    apart = compile_graph(graph, facts)
    assert len(plan.groups) <= len(apart.groups)
    assert len(plan.dispatches) < len(apart.dispatches)
    flops = [sum(d.kernel.flops for d in one.dispatches) for one in (plan, apart)]
    assert flops[0] == flops[1]
    # A CPU runs workgroups one by one.
    labels = [d.kernel.label for d in compile_graph(graph, replace(facts, is_cpu=True)).dispatches]
    assert not any(SEPARATOR in label for label in labels)


BUFFERS = [Buffer(k, "", "transient", TensorType((256,))) for k in range(8)]


def lifted(program: list[Dispatch]) -> list[Dispatch]:
    """The same program of kernels that can be merged, each with a label of its own."""
    result = []
    for number, d in enumerate(program):
        reads = [(f"x{k}", "f32") for k in range(len(d.reads))]
        writes = [(f"y{k}", "f32") for k in range(len(d.writes))]
        source = bindings(reads, writes) + linear_main(64, 64, "")
        kernel = Kernel(str(number), source, (1, 1, 1), 7 * number)
        result.append(Dispatch(kernel, d.reads, d.writes))
    return result


@given(programs())
def test_order_is_kept(program: list[Dispatch]) -> None:
    real = lifted(program)
    order, starts = schedule(real)
    launches, begins = merge(order, starts, BUFFERS, GPU)
    verify_groups(launches, begins)
    assert groups_by_label(launches, begins) == groups_by_label(order, starts)


def groups_by_label(dispatches: tuple[Dispatch, ...], starts: tuple[int, ...]) -> dict[str, int]:
    numbers = groups_of(dispatches, starts)
    return {label: numbers[id(d)] for d in dispatches for label in d.kernel.label.split(SEPARATOR)}
