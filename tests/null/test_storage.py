"""Which parameters plans keep as f16, and which values survive that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine import ops
from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import PlanError
from engine.graph import Graph, Node
from engine.halves import halved
from engine.memory import ALIGNMENT
from engine.optim import keep_gradients
from engine.serialize import dump_plan, load_plan
from engine.storage import survives


def parameter(graph: Graph, name: str, *shape: int) -> Node:
    return graph.parameter(name, shape, lambda rng, shape: np.zeros(shape, np.float32))


def test_only_what_is_read_as_rows_of_fours_alone() -> None:
    graph = Graph()
    for name, columns in (("plain", 8), ("viewed", 8), ("shown", 8), ("added", 8), ("odd", 7)):
        weight = parameter(graph, name, 4, columns)
        if name == "viewed":
            weight = ops.reshape(weight, (4, 8))
        x = graph.input(f"{name}.x", (2, columns))
        y = ops.linear(x, weight, parameter(graph, f"{name}.bias", 4))
        if name == "added":
            y = ops.add(y, ops.reduce_sum(weight, (1,)))
        graph.output(f"{name}.y", y)
        if name == "shown":
            graph.output("shown.copy", weight)
    table = parameter(graph, "table", 5, 12)
    ids = graph.input("ids", (3,), "u32")
    graph.output("rows", ops.embedding(ids, table))
    graph.output("tied", ops.linear(graph.input("h", (1, 12)), table))
    parameter(graph, "unread", 4, 4)
    assert halved(graph) == {"plain", "viewed", "table"}
    assert halved(graph, ["table", "nothing"]) == {"plain", "viewed"}


def test_products_of_several_have_all_of_them_alike() -> None:
    graph = Graph()
    x = graph.input("x", (2, 8))
    weights = {name: parameter(graph, name, 8, 8) for name in "abcd"}
    for first, second in ("ab", "bc"):
        parts = [weights[first], weights[second]]
        graph.output(f"{first}{second}", graph.add("packed_matmul", [x, *parts]))
    graph.output("d.y", ops.linear(x, weights["d"]))
    assert halved(graph) == set("abcd")
    assert halved(graph, "c") == {"d"}


def test_programs_that_train_are_refused() -> None:
    graph = Graph()
    loss = ops.mean_square(ops.linear(graph.input("x", (2, 8)), parameter(graph, "w", 4, 8)))
    graph.output("loss", loss)
    keep_gradients(loss)
    with pytest.raises(PlanError, match="for inference; this program trains"):
        compile_graph(graph, storage="f16")


def test_values_that_survive(rng: np.random.Generator) -> None:
    usual = rng.normal(0, 0.02, (31, 7)).astype(np.float32)
    assert survives(usual) and survives(np.zeros(3)) and survives(np.array([65504.0, 1e-9]))
    for value in (65520.0, -1e30, np.inf, np.nan):
        assert not survives(np.append(usual, np.float32(value))), value
    assert not survives(usual * np.float32(1e-6))


def test_plans_with_f16_are_judged_and_kept() -> None:
    """A run of packed weights needs no copy, memory is half, and a shader for f32 is found out."""
    graph = Graph()
    x = graph.input("x", (1, 64))
    gate, up = (ops.linear(x, parameter(graph, name, 8, 64)) for name in ("gate", "up"))
    graph.output("y", ops.swiglu(gate, up))
    plan, plain = (compile_graph(graph, storage=storage) for storage in ("f16", "f32"))
    check_plan(plan)
    assert [d.kernel.label for d in plan.dispatches] == ["gated_matmul_nt_1x1x16x64_gemv_f16"]
    report = [p.memory_report()["parameter"]["logical"] for p in (plan, plain)]
    assert report == [2 * 8 * 64 * 2, 2 * 8 * 64 * 4] and 8 * 64 * 2 % ALIGNMENT == 0
    assert dump_plan(load_plan(dump_plan(plan))) == dump_plan(plan)
    wrong = replace(plan, dispatches=plain.dispatches)
    with pytest.raises(PlanError, match="declares b as vec4<f32>, which is f16"):
        check_plan(wrong)
