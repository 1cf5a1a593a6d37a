"""The training program at a reduced size: gradients, chunking and learning."""

import numpy as np
import pytest
from cases import Feeds, relative_l2

from engine.chunks import cut, estimated_costs
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.optim import HYPER, AdamW, Optimizer
from engine.plan import Plan
from engine.schedules import Warmup
from engine.session import Session
from models.nn import initial_parameters
from models.vision import inference_graph, training_graph

pytestmark = pytest.mark.gpu

SIZE = 32
OPTIMIZER = AdamW(2e-3, weight_decay=0.01, schedule=Warmup(2))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return training_graph(OPTIMIZER, depth=1, size=SIZE)


@pytest.fixture(scope="module")
def plan(gpu: Gpu, graph: Graph) -> Plan:
    return compile_graph(graph, gpu.facts)


def feeds(graph: Graph) -> Feeds:
    rng = np.random.default_rng(17)
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    stripes = 0.5 + 0.4 * np.sin(np.stack([9 * x, 7 * y, 5 * (x + y)], axis=-1))
    image = np.clip(stripes + rng.normal(0, 0.05, stripes.shape), 0, 1)
    return {**initial_parameters(graph, seed=5), "image": image.astype(np.float32)}


def train(
    session: Session, optimizer: Optimizer, steps: int, chunks: int, start: int = 1
) -> list[float]:
    """Losses of `steps` steps, each cut into chunks that are submitted one by one."""
    gpu, losses = session.gpu, []
    ranges = cut(estimated_costs(session.plan), chunks)
    for step in range(start, start + steps):
        session.write(HYPER, optimizer.hyper(step))
        for first, last in ranges:
            encoder = gpu.device.create_command_encoder()
            session.encode(encoder, first, last)
            gpu.submit(encoder)
        losses.append(float(session.read("loss")[0]))
    return losses


def test_gradients_of_all_parameters(gpu: Gpu, graph: Graph, plan: Plan) -> None:
    session, values = Session(gpu, plan), feeds(graph)
    session.load(values)
    session.poison()
    session.run()
    wanted = [graph.outputs["loss"], *graph.gradients.values()]
    loss, *want = interpret(graph, values, wanted)
    assert abs(session.read("loss")[0] / loss[0] - 1) < 1e-5
    assert len(want) == len(graph.parameters(trainable=True)) > 20
    for name, gradient in zip(graph.gradients, want, strict=True):
        assert np.linalg.norm(gradient) > 1e-6, f"{name} learns nothing"
        assert relative_l2(session.read(f"gradient:{name}"), gradient) < 2e-5, name


def test_learning_is_bit_equal_for_every_chunk_count(gpu: Gpu, graph: Graph, plan: Plan) -> None:
    values, results = feeds(graph), {}
    for chunks in (1, 2, 3, 7, 16):
        session = Session(gpu, plan)
        session.load(values)
        assert len(cut(estimated_costs(plan), chunks)) == chunks
        losses = train(session, OPTIMIZER, 3, chunks)
        results[chunks] = losses, session.snapshot(["parameter", "state"])
    losses, snapshot = results[1]
    assert len(set(losses)) == 3
    for chunks, (other_losses, other) in results.items():
        assert other_losses == losses, chunks
        for name, value in snapshot.items():
            assert np.array_equal(other[name], value), (name, chunks)


def test_two_sessions_interleaved_on_one_queue_do_not_disturb_each_other(
    gpu: Gpu, graph: Graph, plan: Plan
) -> None:
    values = feeds(graph)
    alone = Session(gpu, plan)
    alone.load(values)
    want = train(alone, OPTIMIZER, 2, 4)
    first, second = Session(gpu, plan), Session(gpu, plan)
    got: list[tuple[float, float]] = []
    for session in (first, second):
        session.load(values)
    for step in (1, 2):
        for session in (first, second):
            session.write(HYPER, OPTIMIZER.hyper(step))
        for low, high in cut(estimated_costs(plan), 4):
            for session in (first, second):
                encoder = gpu.device.create_command_encoder()
                session.encode(encoder, low, high)
                gpu.submit(encoder)
        got.append((float(first.read("loss")[0]), float(second.read("loss")[0])))
    assert got == [(loss, loss) for loss in want]


def test_training_lowers_the_loss_and_deploys(gpu: Gpu, graph: Graph, plan: Plan) -> None:
    session, values = Session(gpu, plan), feeds(graph)
    session.load(values)
    losses = train(session, OPTIMIZER, 20, 2)
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]
    frozen = session.snapshot(["frozen"])
    assert all(np.array_equal(value, values[name]) for name, value in frozen.items())
    deployed = Session(gpu, compile_graph(inference_graph(depth=1, size=SIZE), gpu.facts))
    deployed.load({**frozen, **session.snapshot(["parameter"]), "image": values["image"]})
    deployed.poison()
    deployed.run()
    painted = deployed.read("painted")
    error = np.mean((painted - values["image"]) ** 2)
    session.run()  # the loss of the parameters that were just deployed
    assert session.read("loss")[0] == pytest.approx(error, rel=1e-5)
