"""Training steps on the device against optimisers written out in float64 NumPy."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from cases import Feeds, assert_close

from engine import ops
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.optim import HYPER, Adam, Optimizer, Sgd, minimize
from engine.session import Session

pytestmark = pytest.mark.gpu

STEPS = 5


def zero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.float32)


def build(optimizer: Optimizer) -> Graph:
    """Parameters used once, twice, never, and through views whose gradients share storage."""
    graph = Graph()

    def parameter(name: str, *shape: int) -> Node:
        return graph.parameter(name, shape, zero)

    x, target = graph.input("x", (6, 7)), graph.input("target", (6, 5))
    once, twice = parameter("once", 7, 7), parameter("twice", 7, 5)
    parameter("unused", 3, 3)
    parameter("unused row", 3)
    left, right = parameter("left", 30), parameter("right", 5, 6)
    frozen = graph.parameter("frozen", (5,), zero, trainable=False)
    hidden = ops.unary("tanh", ops.matmul(x, once))
    y = ops.add(ops.matmul(hidden, twice), ops.matmul(x, twice))
    # Both gradients below are views of the gradient of y.
    y = ops.add(y, ops.reshape(left, (6, 5)))
    y = ops.add(y, ops.reshape(right, (6, 5)))
    y = ops.add(y, frozen)
    loss = ops.reduce_mean(ops.square(ops.sub(y, target)), range(2))
    graph.output("loss", loss)
    minimize(loss, optimizer)
    return graph


@dataclass
class Reference:
    """Textbook updates in float64. `rate` is a function of the step, from 1."""

    values: dict[str, np.ndarray]
    moments: dict[str, np.ndarray] = field(default_factory=dict)

    def moment(self, kind: str, name: str) -> np.ndarray:
        return self.moments.get(f"{kind}.{name}", np.zeros_like(self.values[name]))

    def sgd(self, o: Sgd, step: int, name: str, g: np.ndarray) -> None:
        m = self.moments[f"sgd_m.{name}"] = o.momentum * self.moment("sgd_m", name) + g
        self.values[name] = self.values[name] - o.rate * m

    def adam(self, o: Adam, step: int, name: str, g: np.ndarray) -> None:
        rate = o.rate * (min(1.0, step / o.warmup) if o.warmup else 1.0)
        m = o.beta1 * self.moment("adam_m", name) + (1 - o.beta1) * g
        v = o.beta2 * self.moment("adam_v", name) + (1 - o.beta2) * g**2
        self.moments[f"adam_m.{name}"], self.moments[f"adam_v.{name}"] = m, v
        m_hat, v_hat = m / (1 - o.beta1**step), v / (1 - o.beta2**step)
        w = self.values[name]
        self.values[name] = w - rate * (m_hat / (np.sqrt(v_hat) + o.eps) + o.weight_decay * w)


# eps is large enough that elements with tiny gradients do not amplify rounding.
OPTIMIZERS = {
    "sgd": Sgd(0.3),
    "momentum": Sgd(0.1, 0.9),
    "adam": Adam(0.01, eps=1e-5),
    "adam with decay": Adam(0.02, 0.8, 0.95, 1e-5, weight_decay=0.1),
    "adam with warm-up": Adam(0.02, eps=1e-5, weight_decay=0.05, warmup=3),
}


def initial(graph: Graph, rng: np.random.Generator) -> Feeds:
    named = [node for node in graph.nodes if node.op in ("parameter", "input")]
    feeds = {n.name: rng.uniform(-1, 1, n.shape).astype(np.float32) for n in named}
    del feeds[HYPER]
    return feeds


@pytest.mark.parametrize("optimize", [True, False], ids=["rewritten", "plain"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_steps_of(name: str, optimize: bool, gpu: Gpu, rng: np.random.Generator) -> None:
    optimizer = OPTIMIZERS[name]
    graph = build(optimizer)
    feeds = initial(graph, rng)
    session = Session(gpu, compile_graph(graph, gpu.facts, optimize=optimize))
    session.load({key: v for key, v in feeds.items() if key in session.plan.tensors})
    reference = Reference({key: v.astype(np.float64) for key, v in feeds.items()})
    wanted = [graph.outputs["loss"], *graph.gradients.values()]
    for step in range(1, STEPS + 1):
        session.write(HYPER, optimizer.hyper(step))
        session.poison()
        session.run()
        loss, *grads = interpret(graph, reference.values, wanted)
        assert_close(session.read("loss"), loss, 1e-5, f"loss {step}")
        for key, g in zip(graph.gradients, grads, strict=True):
            got = session.read(f"gradient:{key}")
            scale = max(np.abs(g).max(), 1e-3)
            assert np.abs(got - g).max() <= 2e-5 * scale, (key, step)
            apply = reference.sgd if isinstance(optimizer, Sgd) else reference.adam
            apply(optimizer, step, key, g)  # type: ignore[arg-type]
    for key, value in reference.values.items():
        if key in session.plan.tensors and key not in ("x", "target"):
            assert_close(session.read(key), value, 1e-5, key)
    for key, value in reference.moments.items():
        assert np.abs(session.read(key) - value).max() <= 1e-5 * max(np.abs(value).max(), 1e-3)
    decays = isinstance(optimizer, Adam) and optimizer.weight_decay > 0
    moved = {key for key, v in feeds.items() if not np.array_equal(reference.values[key], v)}
    assert moved == {"once", "twice", "left", "right"} | (
        {"unused", "unused row"} if decays else set()
    )


def test_a_pack_in_several_runs_trains_alike(gpu: Gpu, rng: np.random.Generator) -> None:
    """Parameters that no single binding can hold are updated by several launches."""
    optimizer = Adam(0.01)
    graph = build(optimizer)
    feeds = initial(graph, rng)
    results = []
    for limit in (gpu.facts.max_binding_bytes, 512):
        facts = replace(gpu.facts, max_binding_bytes=limit)
        session = Session(gpu, compile_graph(graph, facts))
        session.load({key: v for key, v in feeds.items() if key in session.plan.tensors})
        for step in (1, 2):
            session.write(HYPER, optimizer.hyper(step))
            session.run()
        results.append(session.snapshot(["parameter", "state"]))
        updates = [d for d in session.plan.dispatches if d.kernel.label == "adam_update"]
        assert len(updates) == (1 if limit > 512 else 3)
    for key, value in results[0].items():
        assert np.array_equal(value, results[1][key]), key
