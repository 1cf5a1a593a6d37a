"""Optimisers: the scalars fed to the device, and the training graph around them."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.autodiff import gradients
from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import GraphError
from engine.graph import Graph, Node, verify
from engine.interpret import interpret
from engine.optim import HYPER, Adam, AdamW, Optimizer, Sgd, minimize
from engine.plan import Plan
from engine.schedules import Constant, Cosine, Schedule, Warmup
from engine.specialize import DeviceFacts


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape)


def test_sgd_feeds_its_rate() -> None:
    for step in (1, 7):
        assert Sgd(0.25, 0.9).hyper(step).tolist() == [0.25, 0, 0, 0]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 1000])
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam_feeds_bias_corrections_warm_up_and_decay(kind: type[Adam], step: int) -> None:
    adam = kind(2e-3, 0.8, 0.98, weight_decay=0.5, schedule=Warmup(4))
    rate = 2e-3 * {1: 0.25, 2: 0.5, 3: 0.75}.get(step, 1.0)
    decay = rate * 0.5 if kind is AdamW else 0
    want = [rate / (1 - 0.8**step), 1 / math.sqrt(1 - 0.98**step), decay, 0]
    got = adam.hyper(step)
    assert got.dtype == np.float32 and got.shape == (4,)
    assert got.tolist() == pytest.approx(want, rel=1e-7)


def test_adam_without_warm_up_starts_at_full_rate() -> None:
    assert Adam(1e-3, 0.9).hyper(1)[0] == pytest.approx(1e-2, rel=1e-6)
    assert Adam().hyper(1)[2] == 0


def test_the_two_kinds_of_decay() -> None:
    """Adam's is in the gradient, a constant of the kernel; AdamW's is fed and outside of it."""
    assert Adam(weight_decay=0.3).constants["l2"] == 0.3
    assert AdamW(weight_decay=0.3).constants["l2"] == 0
    assert AdamW(1.0).hyper(1)[2] == pytest.approx(0.01)


def test_accumulating_runs_are_marked_and_counted() -> None:
    adam = Adam(accumulate=3, schedule=Warmup(2))
    fed = [adam.hyper(run).tolist() for run in range(1, 8)]
    assert [f[3] for f in fed] == [1, 0, 2, 1, 0, 2, 1]
    once = [Adam(schedule=Warmup(2)).hyper(update).tolist()[:3] for update in (1, 2, 3)]
    assert [f[:3] for f in fed] == [once[0]] * 3 + [once[1]] * 3 + [once[2]]
    assert [adam.updates(runs) for runs in (0, 2, 3, 6, 7)] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), {1: 1, 100: 1}),
        (Warmup(1), {1: 1, 2: 1}),
        (Warmup(4), {1: 0.25, 3: 0.75, 4: 1, 5: 1}),
        (Cosine(4), {1: (1 + math.sqrt(0.5)) / 2, 2: 0.5, 4: 0, 9: 0}),
        (Cosine(8, warmup=4, final=0.2), {1: 0.25, 3: 0.75, 4: 1, 6: 0.6, 8: 0.2, 99: 0.2}),
    ],
)
def test_schedules(schedule: Schedule, factors: dict[int, float]) -> None:
    assert {u: schedule(u) for u in factors} == pytest.approx(factors, abs=1e-12)
    assert Sgd(0.5, schedule=schedule).hyper(2)[0] == np.float32(0.5 * schedule(2))


def test_the_longest_matching_prefix_counts() -> None:
    prefixes = {"a": 0.5, "a.b": 2.0, "a.b.c": 0.0, "d": 3.0}
    sgd = Sgd(multipliers=prefixes)
    names = {"a": 0.5, "a.x": 0.5, "ab": 1.0, "a.b": 2.0, "a.b.x": 2.0, "a.bb": 0.5}
    names |= {"a.b.c": 0.0, "a.b.c.d": 0.0, "d.a.b": 3.0, "other": 1.0, "x.a": 1.0}
    assert {name: sgd.multiplier(name) for name in names} == names


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Sgd(-1.0), "rate must be at least 0, not -1"),
        (lambda: Sgd(math.nan), "rate"),
        (lambda: Sgd(0.1, 1.0), "momentum"),
        (lambda: Sgd(0.1, nesterov=True), "above 0 for Nesterov"),
        (lambda: Adam(beta1=1.0), "beta1"),
        (lambda: Adam(beta2=-0.1), "beta2"),
        (lambda: AdamW(eps=0.0), "eps must be above 0"),
        (lambda: AdamW(weight_decay=-0.1), "weight_decay"),
        (lambda: Sgd(clip_norm=0.0), "clip_norm must be above 0"),
        (lambda: Sgd(clip_norm=math.inf), "clip_norm"),
        (lambda: Adam(accumulate=0), "accumulate must be at least 1"),
        (lambda: Adam(multipliers={"a": -1.0}), "multiplier 'a'"),
        (lambda: Warmup(0), "at least 1 update"),
        (lambda: Cosine(3, warmup=3), "warmup < updates"),
        (lambda: Cosine(3, final=1.5), "final <= 1"),
    ],
)
def test_impossible_values_are_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(GraphError, match=named):
        make()


NAMES = ("used", "unused", "twice")


def build(optimizer: Optimizer) -> Graph:
    graph = Graph()
    frozen = graph.parameter("frozen", (3, 4), ones, trainable=False)
    used, _, twice = (graph.parameter(name, (3, 4), ones) for name in NAMES)
    y = ops.add(ops.mul(ops.mul(used, frozen), twice), twice)
    minimize(ops.reduce_sum(y, range(2)), optimizer)
    return graph


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), Adam(), AdamW(accumulate=2)])
def test_minimize_updates_exactly_the_trainable_parameters(optimizer: Optimizer) -> None:
    graph = build(optimizer)
    verify(graph)
    assert tuple(graph.gradients) == NAMES
    (effect,) = graph.effects
    updated = effect.inputs[1 : 1 + len(NAMES)]
    assert [node.name for node in updated] == list(NAMES)
    assert effect.inputs[0].name == HYPER
    kinds = {*optimizer.moments} | ({"gradient_sum"} if optimizer.accumulate > 1 else set())
    states = {node.name for node in graph.nodes if node.op == "state"}
    assert states == {f"{kind}.{name}" for kind in kinds for name in NAMES}


def test_a_multiplier_that_matches_nothing_is_a_mistake() -> None:
    for prefix in ("frozen", "use", "used.x", ""):
        with pytest.raises(GraphError, match="matches no trainable parameter"):
            build(Sgd(multipliers={prefix: 0.5}))


EVERYTHING: dict[str, Any] = {"accumulate": 3, "clip_norm": 1.0, "multipliers": {"twice": 0.5}}


@pytest.mark.parametrize("optimizer", [Sgd(0.1, 0.9, True, **EVERYTHING), AdamW(**EVERYTHING)])
@pytest.mark.parametrize("optimize", [True, False])
def test_plans_of_everything_are_sound_on_the_smallest_device(
    optimizer: Optimizer, optimize: bool
) -> None:
    facts = DeviceFacts(max_storage_buffers=8)
    plan = compile_graph(build(optimizer), facts, optimize=optimize)
    check_plan(plan, facts)
    labels = [d.kernel.label for d in plan.dispatches]
    assert labels[-4:] == ["accumulate", "sum_squares", "global_norm", optimizer.update]


def test_plans_of_cut_packs_are_sound() -> None:
    graph = Graph()
    x = graph.input("x", (5000,))
    products = [ops.mul(graph.parameter(n, (5000,), ones), x) for n in ("twice", "b", "c")]
    total = ops.add(ops.add(products[0], products[1]), products[2])
    minimize(ops.reduce_sum(ops.square(total), [0]), Adam(**EVERYTHING))
    facts = replace(DeviceFacts(), max_binding_bytes=45_000)
    plan: Plan = compile_graph(graph, facts)
    check_plan(plan, facts)
    labels = [d.kernel.label for d in plan.dispatches]
    assert labels.count("adam_update") == labels.count("sum_squares") == 2


def test_several_losses_are_minimised_as_a_weighted_sum(rng: np.random.Generator) -> None:
    """Their gradients add up with the same weights, seen through shared and separate parts."""
    graph = Graph()
    x = graph.parameter("x", (4, 3), ones)
    y = graph.parameter("y", (3,), ones)
    shared = ops.unary("tanh", ops.mul(x, y))
    losses = [
        ops.reduce_sum(ops.square(shared), range(2)),
        ops.reduce_mean(ops.unary("exp", ops.mul(shared, x)), range(2)),
        ops.reduce_sum(ops.unary("sigmoid", y), [0]),
    ]
    weights = (0.5, -2.0, 3.0)
    total: Node = ops.affine(losses[0], weights[0])
    for loss, weight in zip(losses[1:], weights[1:], strict=True):
        total = ops.add(total, ops.affine(loss, weight))
    together = gradients(total, [x, y])
    apart = [gradients(loss, [x, y]) for loss in losses]
    feeds = {"x": rng.normal(size=(4, 3)), "y": rng.normal(size=3)}
    wanted = [*together, *(g for pair in apart for g in pair)]
    values = interpret(graph, feeds, wanted)
    for k in range(2):
        parts = [weight * values[2 + 2 * n + k] for n, weight in enumerate(weights)]
        assert np.allclose(values[k], sum(parts), rtol=1e-12, atol=1e-12)
        assert all(np.abs(part).max() > 1e-3 for n, part in enumerate(parts) if k or n < 2)
