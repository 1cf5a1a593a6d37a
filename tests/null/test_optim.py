"""Optimisers: the scalars fed to the device, and the training graph around them."""

import math

import numpy as np
import pytest

from engine import ops
from engine.graph import Graph, verify
from engine.optim import HYPER, Adam, Optimizer, Sgd, minimize


def test_sgd_feeds_its_rate() -> None:
    for step in (1, 7):
        assert Sgd(0.25, 0.9).hyper(step).tolist() == [0.25, 0, 0, 0]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 1000])
def test_adam_feeds_bias_corrections_warm_up_and_decay(step: int) -> None:
    adam = Adam(2e-3, 0.8, 0.98, weight_decay=0.5, warmup=4)
    rate = 2e-3 * {1: 0.25, 2: 0.5, 3: 0.75}.get(step, 1.0)
    want = [rate / (1 - 0.8**step), 1 / math.sqrt(1 - 0.98**step), rate * 0.5, 0]
    got = adam.hyper(step)
    assert got.dtype == np.float32 and got.shape == (4,)
    assert got.tolist() == pytest.approx(want, rel=1e-7)


def test_adam_without_warm_up_starts_at_full_rate() -> None:
    assert Adam(1e-3, 0.9).hyper(1)[0] == pytest.approx(1e-2, rel=1e-6)
    assert Adam().hyper(1)[2] == 0


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), Adam()])
def test_minimize_updates_exactly_the_trainable_parameters(optimizer: Optimizer) -> None:
    graph = Graph()
    frozen = graph.parameter("frozen", (3, 4), lambda rng, s: np.ones(s), trainable=False)
    names = ("used", "unused", "twice")
    used, _, twice = (graph.parameter(n, (3, 4), lambda rng, s: np.ones(s)) for n in names)
    y = ops.add(ops.mul(ops.mul(used, frozen), twice), twice)
    minimize(ops.reduce_sum(y, range(2)), optimizer)
    verify(graph)
    assert tuple(graph.gradients) == names
    (effect,) = graph.effects
    updated = effect.inputs[1 : 1 + len(names)]
    assert [node.name for node in updated] == list(names)
    assert effect.inputs[0].name == HYPER
    states = {node.name for node in graph.nodes if node.op == "state"}
    assert states == {f"{moment}.{name}" for moment in optimizer.moments for name in names}
