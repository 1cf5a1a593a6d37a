"""The encoder on the device against an independent NumPy forward pass."""

import numpy as np
import pytest
from cases import relative_l2
from device_runs import outputs, variant
from vit import engine_layout, forward, random_weights

from engine.gpu import Gpu
from engine.graph import Graph
from models.dinov3 import encode, patch_tokens

pytestmark = pytest.mark.gpu


def encoder(height: int, width: int, depth: int) -> Graph:
    graph = Graph()
    graph.output("tokens", encode(graph.input("image", (height, width, 3)), depth))
    return graph


@pytest.mark.parametrize(
    "height, width, depth, chosen",
    [(224, 224, 3, "cpu"), (32, 48, 2, "cpu"), (48, 16, 1, "gpu")],
)
def test_tokens(
    height: int, width: int, depth: int, chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    weights = random_weights(depth, rng)
    graph = encoder(height, width, depth)
    assert {p.name for p in graph.parameters()} == weights.keys()
    image = rng.uniform(0, 1, (height, width, 3)).astype(np.float32)
    feeds = {"image": image, **engine_layout(weights)}
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))["tokens"]
    want = forward(image, weights, depth)
    assert got.shape == (5 + height * width // 256, 384)
    assert relative_l2(got, want) < 1e-5


def test_patch_tokens_drop_the_prefix(gpu: Gpu, rng: np.random.Generator) -> None:
    graph = encoder(32, 48, 1)
    graph.output("patches", patch_tokens(graph.outputs["tokens"]))
    feeds = {"image": rng.uniform(0, 1, (32, 48, 3)).astype(np.float32)}
    feeds |= engine_layout(random_weights(1, rng))
    got = outputs(gpu, graph, feeds)
    assert np.array_equal(got["patches"], got["tokens"][5:])
