"""Dense self-distillation as a graph: its parts against NumPy, its gradients, its plan; options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.pretrain.recipe import AVERAGE_RATE, PretrainRecipe, choose_recipe
from engine.averaging import RATE, declare_averages, update_averages
from engine.check import check_plan
from engine.checkpoint import Checkpoint
from engine.compile import compile_graph
from engine.errors import CheckpointError, GraphError, PlanError
from engine.graph import Graph
from engine.interpret import interpret
from engine.optim import HYPER, AdamW
from engine.rewrite import rewrite
from models.nn import initial_parameters
from models.pretraining import TEACHER, Objective, balanced, pretraining_graph
from tests.command_line import fails

VIEWS, SIZE, N = 4, 32, 4
OBJECTIVE = Objective(prototypes=8, reconstruction=3.0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return pretraining_graph(AdamW(), OBJECTIVE, views=VIEWS, depth=1, size=SIZE)


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    """Random views and weights; the teacher differs from the student."""
    rng = np.random.default_rng(11)
    student, other = (initial_parameters(graph, seed) for seed in (1, 2))
    student["pixels.bias"] += 0.4
    return {
        **student,
        **{f"{TEACHER}.{name}": value for name, value in other.items()},
        "image": rng.random((VIEWS, SIZE, SIZE, 3)),
        "masked": (np.arange(VIEWS * N).reshape(VIEWS, N, 1) % 3 == 0) * 1.0,
        "match": rng.permutation(VIEWS * N).astype(np.uint32),
        "weight": (np.arange(VIEWS * N) % 4 != 1) * 1.0,
    }


def test_assignments_are_those_of_sinkhorns_iteration(rng: np.random.Generator) -> None:
    logits = rng.uniform(-1, 1, (40, 6)) / 0.06
    graph = Graph()
    (got,) = interpret(graph, {"x": logits}, [balanced(graph.input("x", (40, 6)), 3)])
    want = np.exp(logits - logits.max())
    for _ in range(3):
        want /= want.sum(axis=0, keepdims=True)
        want /= want.sum(axis=1, keepdims=True)
    assert np.allclose(got, want, rtol=1e-9, atol=1e-15)
    graph = Graph()
    (settled,) = interpret(graph, {"x": logits}, [balanced(graph.input("x", (40, 6)), 300)])
    assert np.allclose(settled.sum(axis=0), 40 / 6, rtol=1e-3)


def test_losses_are_what_they_say(graph: Graph) -> None:
    given = feeds(graph)
    losses = graph.outputs["losses"]
    ((total, distillation, reconstruction),) = interpret(graph, given, [losses])
    assert total == pytest.approx(distillation + 3 * reconstruction)
    flat = {**given, "pixels.weight": np.zeros_like(given["pixels.weight"])}
    ((*_, error),) = interpret(graph, flat, [losses])
    tiles = given["image"].reshape(VIEWS, 2, 16, 2, 16, 3).transpose(0, 1, 3, 2, 4, 5)
    errors = np.square(given["pixels.bias"] - tiles.reshape(VIEWS, N, 768)).mean(axis=-1)
    visible = 1 - given["masked"][..., 0]
    assert error == pytest.approx((errors * visible).sum() / visible.sum(), rel=1e-5)

    # What is under the mask, and tokens without weight, teach nothing.
    hidden = dict(given)
    hidden["masked"] = np.ones_like(given["masked"])
    a = interpret(graph, hidden, [losses])[0]
    hidden["weight"] = np.zeros_like(given["weight"])
    b = interpret(graph, hidden, [losses])[0]
    assert a[2] == b[2] == 0 and b[1] == 0 < a[1]
    hidden = {**given, "weight": np.eye(VIEWS * N)[5]}
    shown = dict(hidden)
    shown["match"] = np.where(np.arange(VIEWS * N) == 5, given["match"], 0).astype(np.uint32)
    assert interpret(graph, hidden, [losses])[0][1] == interpret(graph, shown, [losses])[0][1] > 0


def test_gradients_are_those_of_the_loss(graph: Graph) -> None:
    """Central differences in float64 along a random direction of each part of the network."""
    given, rng = feeds(graph), np.random.default_rng(3)
    names = [*graph.gradients]
    grads = dict(zip(names, interpret(graph, given, list(graph.gradients.values())), strict=True))
    assert not any(name.startswith(TEACHER) for name in names)
    parts = ("embeddings.patch", "embeddings.mask", "layer.0", "norm", "head", "pixels")
    for part in parts:
        mine = [name for name in names if name.startswith(part)]
        assert mine
        along = {name: rng.normal(0, 1, given[name].shape) for name in mine}
        step, values = 1e-6, []
        for sign in (1, -1):
            moved = {name: given[name] + sign * step * along[name] for name in mine}
            values.append(interpret(graph, {**given, **moved}, [graph.outputs["losses"]])[0][0])
        slope = sum(float((grads[name] * along[name]).sum()) for name in mine)
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-7), (
            part
        )


def test_the_plan_updates_parameters_and_then_averages(graph: Graph) -> None:
    assert len(rewrite(graph).nodes) < len(graph.nodes)
    plan = compile_graph(graph)
    check_plan(plan)
    labels = [dispatch.kernel.label for dispatch in plan.dispatches]
    assert labels.index("adam_update") < labels.index("average") == len(labels) - 1
    names = plan.names("parameter")
    assert [n.removeprefix("teacher.") for n in plan.names("state") if "teacher" in n] == names
    # The judge sees averages that belong to other parameters.
    last = plan.dispatches[-1]
    swapped = replace(last, writes=((*last.writes[0][1:], last.writes[0][0]),))
    with pytest.raises(PlanError):
        check_plan(replace(plan, dispatches=(*plan.dispatches[:-1], swapped)))


def test_averages_need_a_declaration_for_each_parameter() -> None:
    graph = Graph()
    graph.parameter("a", (3,), lambda rng, shape: np.zeros(shape))
    declare_averages(graph, "slow")
    graph.parameter("b", (3,), lambda rng, shape: np.zeros(shape))
    with pytest.raises(GraphError, match=r"slow\.b"):
        update_averages(graph, "slow")


def test_schedules_of_rate_and_teacher() -> None:
    recipe = PretrainRecipe(100, rate=0.5)
    assert recipe.optimizer.schedule(1) == pytest.approx(0.1)
    assert recipe.average_rate(50)[0] == pytest.approx(AVERAGE_RATE / 2)
    assert recipe.average_rate(100)[0] == 0
    assert recipe.average_rate(1).shape == (1,) and HYPER != RATE


def test_a_resumed_run_keeps_its_options_unless_others_are_given() -> None:
    first = PretrainRecipe(50, seed=3, batch=2, prototypes=7)
    file = Checkpoint(Path("c.safetensors"), {}, first.metadata())
    assert choose_recipe({"seed": None}, 50, file) == first
    assert choose_recipe({"rate": 0.5}, 80, file) == replace(first, rate=0.5, decay_steps=80)
    with pytest.raises(CheckpointError, match=r"c\.safetensors: its recipe cannot be read"):
        choose_recipe({}, 50, Checkpoint(Path("c.safetensors"), {}, {}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--steps 0", "--steps must be at least 1, not 0"),
        ("--seconds 0", "--seconds must be above 0"),
        ("--seconds nan", "--seconds must be above 0"),
        ("--masked 1.5", "--masked must be 0 to 1, not 1.5"),
        ("--prototypes 1", "--prototypes must be 2 to 65536, not 1"),
        ("--teacher-temperature 0", "--teacher-temperature must be 0.02 to 1, not 0"),
        ("--reconstruction nan", "--reconstruction must be"),
        ("--size 100", "--size must be a multiple of 16"),
        ("--checkpoint e.safetensors", "--checkpoint and --out must be two files"),
        ("--evidence README.md", "--evidence README.md is a file"),
    ],
)
def test_wrong_usage(options: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in fails(capsys, 2, "pretrain", "--out", "e.safetensors", *options.split())
