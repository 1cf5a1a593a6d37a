"""Plans as bytes: an exact round trip, and damage of every kind is told."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import assert_same_plan, small_plans
from random_graphs import programs

from engine import ops
from engine.compile import compile_graph
from engine.errors import PlanError
from engine.graph import Graph
from engine.optim import Adam
from engine.plan import Plan
from engine.serialize import MAGIC, dump_plan, load_plan
from models.vision import training_graph


def little() -> Plan:
    graph = Graph()
    x = graph.input("x · ∂", (3, 5))
    odd = np.array([np.nan, -0.0, np.inf, 1e-45, 3.0], np.float32)
    graph.output('quoted "y"\n', ops.gelu(ops.add(x, graph.constant("odd", odd))))
    graph.output("labels", graph.constant("integers", np.array([[0, 2**32 - 1]], np.uint32)))
    return compile_graph(graph)


def test_the_programs_come_back_whole() -> None:
    for plan in (*small_plans().values(), compile_graph(training_graph(Adam())), little()):
        assert_same_plan(load_plan(dump_plan(plan, "k"), "k"), plan)
        assert dump_plan(load_plan(dump_plan(plan))) == dump_plan(plan)


@given(programs(), st.booleans())
def test_plans_of_random_graphs_come_back_whole(
    program: tuple[Graph, dict[str, Any]], optimize: bool
) -> None:
    plan = compile_graph(program[0], optimize=optimize)
    assert_same_plan(load_plan(dump_plan(plan)), plan)


def test_a_plan_without_anything_comes_back() -> None:
    plan = compile_graph(Graph())
    assert_same_plan(load_plan(dump_plan(plan)), plan)


def test_kernels_that_several_launches_share_are_stored_once() -> None:
    plan = small_plans()["train"]
    sources = {d.kernel.source for d in plan.dispatches}
    assert len(sources) < len(plan.dispatches)
    assert len(dump_plan(plan)) < sum(len(d.kernel.source) for d in plan.dispatches)
    loaded = load_plan(dump_plan(plan))
    assert len({id(d.kernel) for d in loaded.dispatches}) < len(loaded.dispatches)


def test_every_flipped_byte_and_every_cut_is_told() -> None:
    data = dump_plan(little())
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        with pytest.raises(PlanError):
            load_plan(bytes(flipped))
        with pytest.raises(PlanError):
            load_plan(data[:position])
    with pytest.raises(PlanError, match="damaged"):
        load_plan(data + b"\0")


def test_other_versions_and_other_keys_are_told() -> None:
    data = dump_plan(little(), "this")
    with pytest.raises(PlanError, match="something else"):
        load_plan(data, "that")
    with pytest.raises(PlanError, match="version"):
        load_plan(b"DVPLAN99" + data[len(MAGIC) :], "this")


@pytest.mark.parametrize("body", [b"", b"\xff" * 8, b"\2" + b"\0" * 7 + b"{}", b"\1" * 20])
def test_a_malformed_header_under_a_right_digest_is_told(body: bytes) -> None:
    import hashlib

    with pytest.raises(PlanError, match="malformed"):
        load_plan(MAGIC + hashlib.sha256(body).digest() + body)
