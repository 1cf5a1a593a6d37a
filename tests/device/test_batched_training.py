"""A training step on a batch: the mean of what its images teach one by one."""

import numpy as np
import pytest
from cases import Feeds, relative_l2

from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph
from engine.optim import HYPER, Adam
from engine.session import Session
from engine.specialize import DeviceFacts
from models.dinov3 import encode
from models.nn import initial_parameters
from models.vision import training_graph

pytestmark = pytest.mark.gpu

SIZE, BATCH = 32, 3
OPTIMIZER = Adam(1e-3)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Pictures that differ in colour, direction and contrast, so that their gradients differ."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    waves = [np.sin(np.stack([5 * x * k, 7 * y - k * x, 3 * y * k], axis=-1)) for k in (1, 2, 4)]
    return np.stack([0.5 + 0.12 * (k + 1) * wave for k, wave in enumerate(waves)], dtype=np.float32)


def run(gpu: Gpu, graph: Graph, values: Feeds) -> Session:
    session = Session(gpu, compile_graph(graph, gpu.facts))
    session.load(values)
    session.write(HYPER, OPTIMIZER.hyper(1))
    session.poison()
    session.run()
    return session


def test_gradients_are_the_mean_of_single_images(gpu: Gpu, images: np.ndarray) -> None:
    single = training_graph(OPTIMIZER, depth=1, size=SIZE)
    values = initial_parameters(single, seed=5)
    runs = [run(gpu, single, {**values, "image": image}) for image in images]
    batched = training_graph(OPTIMIZER, depth=1, size=SIZE, batch=BATCH)
    together = run(gpu, batched, {**values, "image": images})
    losses = [float(session.read("loss")[0]) for session in runs]
    assert max(losses) > 1.5 * min(losses)
    assert together.read("loss")[0] == pytest.approx(np.mean(losses), rel=1e-5)
    assert list(batched.gradients) == list(single.gradients) and len(single.gradients) > 20
    for name in batched.gradients:
        each = [session.read(f"gradient:{name}") for session in runs]
        assert relative_l2(each[0], each[1]) > 1e-2, f"{name}: the images teach the same"
        mean = np.mean(each, axis=0, dtype=np.float64)
        assert relative_l2(together.read(f"gradient:{name}"), mean) < 2e-5, name


def test_encoder_takes_each_image_of_a_batch_alone(gpu: Gpu, images: np.ndarray) -> None:
    def tokens(image: np.ndarray) -> np.ndarray:
        graph = Graph()
        graph.output("tokens", encode(graph.input("image", image.shape), 2))
        session = Session(gpu, compile_graph(graph, gpu.facts))
        session.load({**initial_parameters(graph, seed=5), "image": image})
        session.run()
        return session.read("tokens")

    together = tokens(images)
    assert together.shape == (BATCH, 5 + (SIZE // 16) ** 2, 384)
    for image, got in zip(images, together, strict=True):
        assert relative_l2(got, tokens(image)) < 2e-6


def test_launches_do_not_grow_with_the_batch() -> None:
    """One launch serves all images: nothing is repeated image by image."""
    facts = DeviceFacts(max_shared_bytes=49152)
    few, many = (
        compile_graph(training_graph(OPTIMIZER, batch=batch), facts).dispatches for batch in (8, 16)
    )
    assert len(many) <= len(few)
