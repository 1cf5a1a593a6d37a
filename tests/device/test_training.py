"""Training steps on the device against optimisers written out in float64 NumPy."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Feeds, assert_close

from engine import ops
from engine.checkpoint import load_checkpoint, save_checkpoint
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.kernels.update import PARTIALS
from engine.optim import HYPER, Adam, AdamW, Optimizer, Sgd, minimize
from engine.schedules import Cosine, Schedule, Warmup
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
    """Textbook optimisers in float64, fed with one gradient per parameter and run."""

    optimizer: Optimizer
    values: dict[str, np.ndarray]
    state: dict[str, np.ndarray] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> np.ndarray:
        return self.state.get(f"{kind}.{name}", np.zeros_like(self.values[name]))

    def run(self, number: int, grads: dict[str, np.ndarray]) -> None:
        o = self.optimizer
        if o.accumulate > 1:
            for name, g in grads.items():
                anew = number % o.accumulate == 1
                total = g if anew else self.get("gradient_sum", name) + g
                self.state[f"gradient_sum.{name}"] = total
            if number % o.accumulate:
                return
            grads = {n: self.get("gradient_sum", n) / o.accumulate for n in grads}
        if o.clip_norm is not None:
            norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
            grads = {n: g * min(1.0, o.clip_norm / norm) for n, g in grads.items()}
        update = -(-number // o.accumulate)
        for name, g in grads.items():
            multiplier = MULTIPLIED.get(name, 1.0) if o.multipliers else 1.0
            assert isinstance(o, Sgd | Adam)
            rate = o.rate * factor(o.schedule, update) * multiplier
            rule = self.sgd if isinstance(o, Sgd) else self.adam
            self.values[name] = rule(o, update, name, g, rate)  # type: ignore[arg-type]

    def sgd(self, o: Sgd, update: int, name: str, g: np.ndarray, rate: float) -> np.ndarray:
        m = self.state[f"sgd_m.{name}"] = o.momentum * self.get("sgd_m", name) + g
        return self.values[name] - rate * (g + o.momentum * m if o.nesterov else m)

    def adam(self, o: Adam, update: int, name: str, g: np.ndarray, rate: float) -> np.ndarray:
        w = self.values[name]
        if not isinstance(o, AdamW):
            g = g + o.weight_decay * w
        m = o.beta1 * self.get("adam_m", name) + (1 - o.beta1) * g
        v = o.beta2 * self.get("adam_v", name) + (1 - o.beta2) * g**2
        self.state[f"adam_m.{name}"], self.state[f"adam_v.{name}"] = m, v
        m_hat, v_hat = m / (1 - o.beta1**update), v / (1 - o.beta2**update)
        decayed = w - rate * o.weight_decay * w if isinstance(o, AdamW) else w
        return decayed - rate * m_hat / (np.sqrt(v_hat) + o.eps)


def factor(schedule: Schedule, update: int) -> float:
    match schedule:
        case Warmup(updates):
            return min(1.0, update / updates)
        case Cosine():
            if update < schedule.warmup:
                return update / schedule.warmup
            done = (update - schedule.warmup) / (schedule.updates - schedule.warmup)
            cosine = np.cos(np.pi * min(done, 1.0))
            return schedule.final + (1 - schedule.final) * 0.5 * (1 + cosine)
    return 1.0


PREFIXES = {"unused": 0.5, "unused row": 2.0, "twice": 0.0, "left": 0.25}
MULTIPLIED = {"twice": 0.0, "unused": 0.5, "unused row": 2.0, "left": 0.25}
MODEST = Cosine(4, warmup=2, final=0.1)

# eps is large enough that elements with tiny gradients do not amplify rounding.
OPTIMIZERS = {
    "sgd": Sgd(0.3),
    "momentum": Sgd(0.1, 0.9),
    "nesterov": Sgd(0.1, 0.9, nesterov=True),
    "adam": Adam(0.01, eps=1e-5),
    "adam with L2": Adam(0.02, 0.8, 0.95, 1e-5, weight_decay=0.1),
    "adamw": AdamW(0.02, 0.8, 0.95, 1e-5, weight_decay=0.1),
    "adamw with warm-up": AdamW(0.02, eps=1e-5, weight_decay=0.05, schedule=Warmup(3)),
    "sgd along a cosine": Sgd(0.3, schedule=MODEST),
    "multipliers": AdamW(0.02, eps=1e-5, weight_decay=0.05, multipliers=PREFIXES),
    "clipped": Sgd(0.3, 0.5, clip_norm=0.05),
    "hardly clipped": Sgd(0.3, clip_norm=1e6),
    "accumulated": Sgd(0.3, 0.9, accumulate=3),
    "everything": AdamW(
        0.05,
        eps=1e-5,
        weight_decay=0.1,
        schedule=MODEST,
        multipliers=PREFIXES,
        clip_norm=0.05,
        accumulate=2,
    ),
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
    exact = {key: v.astype(np.float64) for key, v in feeds.items()}
    reference = Reference(optimizer, exact)
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
        reference.run(step, dict(zip(graph.gradients, grads, strict=True)))
    for key, value in reference.values.items():
        if key in session.plan.tensors and key not in ("x", "target"):
            assert_close(session.read(key), value, 1e-5, key)
    for key, value in reference.state.items():
        assert np.abs(session.read(key) - value).max() <= 1e-5 * max(np.abs(value).max(), 1e-3)
    assert {*reference.state} == {*session.plan.names("state")}
    decays = isinstance(optimizer, Adam) and optimizer.weight_decay > 0
    moved = {key for key, v in feeds.items() if not np.array_equal(reference.values[key], v)}
    learning = {"once", "twice", "left", "right"} | ({"unused", "unused row"} if decays else set())
    assert moved == learning - ({"twice"} if optimizer.multipliers else set())


@pytest.mark.parametrize("extra", [{}, {"multipliers": PREFIXES, "accumulate": 2}])
def test_a_pack_in_several_runs_trains_alike(
    extra: dict[str, Any], gpu: Gpu, rng: np.random.Generator
) -> None:
    """Parameters that no single binding can hold are updated by several launches."""
    optimizer = Adam(0.01, **extra)
    graph = build(optimizer)
    feeds = initial(graph, rng)
    results = []
    for limit in (gpu.facts.max_binding_bytes, 512):
        facts = replace(gpu.facts, max_binding_bytes=limit)
        session = Session(gpu, compile_graph(graph, facts))
        session.load({key: v for key, v in feeds.items() if key in session.plan.tensors})
        for step in (1, 2, 3):
            session.write(HYPER, optimizer.hyper(step))
            session.run()
        results.append(session.snapshot(["parameter", "state"]))
        updates = [d for d in session.plan.dispatches if d.kernel.label == "adam_update"]
        assert len(updates) == (1 if limit > 512 else 3)
    for key, value in results[0].items():
        assert np.array_equal(value, results[1][key]), key


@pytest.mark.parametrize("size", [1, 2, 3, 67, 257])
def test_the_last_elements_of_a_lone_parameter_are_updated(size: int, gpu: Gpu) -> None:
    graph = Graph()
    w = graph.parameter("w", (size,), zero)
    minimize(ops.reduce_sum(ops.square(w), [0]), Sgd(0.25, clip_norm=1e9))
    session = Session(gpu, compile_graph(graph, gpu.facts))
    start = np.arange(1, size + 1, dtype=np.float32)
    session.write("w", start)
    session.write(HYPER, Sgd(0.25).hyper(1))
    session.run()
    assert np.array_equal(session.read("w"), start / 2)


@pytest.mark.parametrize("saved_at", [1, 3, 4])
def test_training_resumes_from_a_checkpoint_bit_for_bit(
    saved_at: int, gpu: Gpu, rng: np.random.Generator, tmp_path: Path
) -> None:
    """In the middle of an accumulated update too."""
    optimizer = OPTIMIZERS["everything"]
    graph = build(optimizer)
    feeds = initial(graph, rng)
    plan = compile_graph(graph, gpu.facts)

    def train(session: Session, first: int, last: int) -> None:
        for step in range(first, last + 1):
            session.write(HYPER, optimizer.hyper(step))
            session.run()

    path = tmp_path / "checkpoint.safetensors"
    whole = Session(gpu, plan)
    whole.load({key: v for key, v in feeds.items() if key in plan.tensors})
    train(whole, 1, saved_at)
    save_checkpoint(path, whole.snapshot(["parameter", "state"]), {"run": str(saved_at)})
    train(whole, saved_at + 1, 7)
    resumed = Session(gpu, plan)
    loaded = load_checkpoint(path)
    names = [*plan.names("parameter"), *plan.names("state")]
    resumed.load(loaded.pick({name: plan.types[name].shape for name in names}))
    resumed.load({name: feeds[name] for name in ("x", "target", "frozen")})
    train(resumed, int(loaded.metadata["run"]) + 1, 7)
    for name in names:
        assert whole.read(name).tobytes() == resumed.read(name).tobytes(), name


def test_accumulated_runs_equal_one_large_batch(gpu: Gpu, rng: np.random.Generator) -> None:
    """Two halves of a batch, one after the other, move the weights as the whole batch does."""

    def regression(rows: int, optimizer: Optimizer) -> Session:
        graph = Graph()
        x, y = graph.input("x", (rows, 5)), graph.input("y", (rows, 3))
        w = graph.parameter("w", (5, 3), zero)
        loss = ops.reduce_mean(ops.square(ops.sub(ops.matmul(x, w), y)), range(2))
        minimize(loss, optimizer)
        return Session(gpu, compile_graph(graph, gpu.facts))

    x, y = rng.normal(size=(8, 5)), rng.normal(size=(8, 3))
    options: dict[str, Any] = {"rate": 0.1, "momentum": 0.9, "clip_norm": 0.3}
    one, two = Sgd(**options), Sgd(**options, accumulate=2)
    whole, halves = regression(8, one), regression(4, two)
    for update in range(3):
        whole.load({"x": x, "y": y, HYPER: one.hyper(update + 1)})
        whole.run()
        for half in range(2):
            rows = slice(4 * half, 4 * half + 4)
            before = halves.read("w")
            run = 2 * update + half + 1
            halves.load({"x": x[rows], "y": y[rows], HYPER: two.hyper(run)})
            halves.run()
            assert np.array_equal(before, halves.read("w")) == (half == 0)
        assert_close(halves.read("w"), whole.read("w").astype(np.float64), 1e-5)


@pytest.mark.parametrize("runs", [1, 2])
def test_the_norm_is_that_of_all_parameters(runs: int, gpu: Gpu, rng: np.random.Generator) -> None:
    """A pack of more vectors than invocations that add up; and one that no binding can hold."""
    graph = Graph()
    sizes = {"long": 4 * PARTIALS + 1_003, "short": 3, "other": 4_500}
    slopes = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    loss = None
    for name, slope in slopes.items():
        w = graph.parameter(name, slope.shape, zero)
        term = ops.reduce_sum(ops.mul(w, graph.constant(f"slope of {name}", slope)), [0])
        loss = term if loss is None else ops.add(loss, term)
    assert loss is not None
    minimize(loss, Sgd(1.0, clip_norm=1.0))
    limit = 70_000 if runs == 2 else gpu.facts.max_binding_bytes
    session = Session(gpu, compile_graph(graph, replace(gpu.facts, max_binding_bytes=limit)))
    labels = Counter(d.kernel.label for d in session.plan.dispatches)
    assert labels["sum_squares"] == labels["sgd_update"] == runs and labels["global_norm"] == 1
    session.write(HYPER, Sgd(1.0).hyper(1))
    session.poison()
    session.run()
    norm = np.sqrt(sum((s.astype(np.float64) ** 2).sum() for s in slopes.values()))
    for name, slope in slopes.items():
        assert_close(session.read(name), -slope / norm, 1e-6, name)
