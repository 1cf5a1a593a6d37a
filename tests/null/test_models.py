"""Model graphs without a device: shapes, names, sizes, initial values, and their gradients."""

import numpy as np
import pytest

from engine.graph import Graph, reachable, verify
from engine.interpret import interpret
from engine.optim import Adam
from models.dinov3 import encode
from models.nn import Scope, count, initial_parameters, pixel_shuffle
from models.vision import inference_graph, training_graph


def test_the_decoder_has_about_two_million_parameters() -> None:
    graph = training_graph(Adam())
    verify(graph)
    trainable = [p.name for p in graph.parameters(trainable=True)]
    assert all(name.startswith("decoder.") for name in trainable)
    total = count({name: np.empty(graph.source(name).shape) for name in trainable})
    assert 1.9e6 < total < 2.1e6
    frozen = {p.name: np.empty(p.shape) for p in graph.parameters(trainable=False)}
    # Embeddings and three blocks of the published checkpoint, without mask token and final norm.
    assert count(frozen) == 5_622_144 - 384


def test_deployment_uses_the_parameters_of_training() -> None:
    trained, deployed = training_graph(Adam()), inference_graph()
    shapes = [{p.name: p.shape for p in g.parameters()} for g in (trained, deployed)]
    assert shapes[0] == shapes[1]
    assert deployed.outputs["painted"].shape == (224, 224, 3)
    assert deployed.outputs["tokens"].shape == (196, 384)
    assert deployed.outputs["components"].shape == (196, 3)


def test_the_encoder_is_not_differentiated() -> None:
    graph = training_graph(Adam(), depth=1, size=32)
    gradients = reachable(graph.gradients.values())
    frozen = set(graph.parameters(trainable=False))
    first_gradient = min(
        node.id for node in gradients if node.op.endswith("_grad") or node.op == "fold"
    )
    assert not any(frozen & set(node.inputs) for node in graph.nodes[first_gradient:])


@pytest.mark.parametrize("depth", [0, 13])
def test_encoder_depth_is_bounded(depth: int) -> None:
    image = Graph().input("image", (32, 32, 3))
    with pytest.raises(ValueError, match=f"1 to 12, got {depth}"):
        encode(image, depth)


def test_image_sides_must_fit_patches() -> None:
    with pytest.raises(ValueError, match="multiples of 16, got 40x32"):
        encode(Graph().input("image", (32, 40, 3)))


def test_components_are_projections_of_the_tokens() -> None:
    graph = inference_graph(depth=1, size=16)
    rng = np.random.default_rng(5)
    feeds = {node.name: rng.normal(0, 0.1, node.shape) for node in graph.nodes if node.name}
    feeds = {n: v for n, v in feeds.items() if graph.source(n).op in ("parameter", "input")}
    tokens, painted, components = interpret(
        graph, feeds, [graph.outputs[name] for name in ("tokens", "painted", "components")]
    )
    want = tokens @ feeds["components.basis"].T + feeds["components.offset"]
    assert np.allclose(components, want, rtol=1e-12)
    assert painted.min() >= 0 and painted.max() <= 1 and painted.std() > 0


def test_pixel_shuffle_moves_channels_into_space() -> None:
    graph = Graph()
    x = graph.input("x", (1, 2, 3, 4 * 5))
    value = np.random.default_rng(0).normal(size=x.shape)
    (y,) = interpret(graph, {"x": value}, [pixel_shuffle(x, 2)])
    assert y.shape == (1, 4, 6, 5)
    for row, column, dy, dx in np.ndindex(2, 3, 2, 2):
        channels = slice(5 * (2 * dy + dx), 5 * (2 * dy + dx) + 5)
        assert np.array_equal(y[0, 2 * row + dy, 2 * column + dx], value[0, row, column, channels])


def test_initial_values_depend_on_seed_and_name_only() -> None:
    def draw(names: list[str], seed: int) -> dict[str, np.ndarray]:
        graph = Graph()
        for name in names:
            graph.parameter(name, (50, 4), lambda rng, shape: rng.standard_normal(shape))
        return initial_parameters(graph, seed)

    one, more, other = draw(["a"], 1), draw(["b", "a"], 1), draw(["a"], 2)
    assert np.array_equal(one["a"], more["a"])
    assert not np.array_equal(one["a"], more["b"])
    assert not np.array_equal(one["a"], other["a"])


def test_scopes_name_parameters() -> None:
    graph = Graph()
    scope = Scope(graph, "", trainable=False) / "layer.0" / "norm"
    node = scope.parameter("weight", (3,), lambda rng, shape: np.ones(shape))
    assert node.name == "layer.0.norm.weight" and not node.attrs["trainable"]


def test_the_whole_training_gradient_against_central_differences() -> None:
    graph = training_graph(Adam(), depth=1, size=16)
    rng = np.random.default_rng(11)
    feeds = {name: v.astype(np.float64) for name, v in initial_parameters(graph, 3).items()}
    feeds |= {
        name: feeds[name] + rng.normal(0, 0.02, feeds[name].shape) for name in graph.gradients
    }
    feeds["image"] = rng.uniform(0, 1, (16, 16, 3))
    gradients = interpret(graph, feeds, [*graph.gradients.values()])
    loss = graph.outputs["loss"]
    for name, gradient in zip(graph.gradients, gradients, strict=True):
        direction = rng.choice((-1.0, 1.0), gradient.shape)
        step = 1e-5 / np.sqrt(gradient.size)
        up, down = (
            interpret(graph, {**feeds, name: feeds[name] + s * step * direction}, [loss])[0].item()
            for s in (1, -1)
        )
        numeric, along = (up - down) / (2 * step), (gradient * direction).sum()
        assert abs(numeric - along) <= 1e-5 * np.linalg.norm(gradient) + 1e-9, name
