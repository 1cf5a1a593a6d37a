"""The U-Net and ResNet-50 without a device: published names and shapes, values, gradients."""

from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
import pytest
from workload_values import draw_inputs, draw_parameters

from engine.graph import verify
from engine.interpret import interpret
from models.resnet50 import RESNET50
from models.unet import UNET, UnetConfig
from models.workload import LOSS, OUTPUT, Network, Workload

WORKLOADS = {"unet": UNET, "resnet50": RESNET50}
PUBLISHED = {
    "unet": (
        181,
        10_928_768,
        "50993753a7b2ade0f1d24c0be9e76529ba6a133ba31ae22fda39a56587490d2d",
    ),
    "resnet50": (
        108,
        25_530_472,
        "2acfdbea1823b18220f87ff2b26e657bb8eba38bed241df33a07b734ef9923b1",
    ),
}
"""Tensors, elements, and SHA-256 of the sorted lines "name 1x2x3", from the reference files."""
STEP = 1e-6

each = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


def native_shapes(network: Network) -> dict[str, tuple[int, ...]]:
    return {name: layout.native for name, layout in network.layouts.items()}


@pytest.mark.parametrize("name", WORKLOADS)
def test_names_and_shapes_are_the_published_ones(name: str) -> None:
    workload = WORKLOADS[name]
    shapes = native_shapes(workload.training(workload.full))
    assert shapes == native_shapes(workload.inference(workload.full))
    lines = [f"{key} {'x'.join(map(str, shape))}\n" for key, shape in sorted(shapes.items())]
    digest = sha256("".join(lines).encode()).hexdigest()
    assert (len(shapes), sum(map(prod, shapes.values())), digest) == PUBLISHED[name]


@each
def test_full_size_graphs_are_valid_and_keep_every_gradient(workload: Workload[Any]) -> None:
    network = workload.training(workload.full)
    verify(network.graph)
    assert [*network.graph.gradients] == [*network.layouts]
    for name, gradient in network.graph.gradients.items():
        assert gradient.shape == network.layouts[name].engine
    assert not network.graph.effects


@pytest.mark.parametrize(
    ("workload", "config", "shape"),
    [
        (UNET, UNET.full, (1, 4, 32, 32)),
        (UNET, UNET.sized(12), (1, 4, 12, 12)),
        (RESNET50, RESNET50.full, (4, 1000)),
        (RESNET50, RESNET50.latency, (1, 1000)),
        (RESNET50, RESNET50.sized(97), (4, 1000)),
    ],
)
def test_shapes_of_inputs_and_output(
    workload: Workload[Any], config: Any, shape: tuple[int, ...]
) -> None:
    graph = workload.inference(config).graph
    verify(graph)
    assert graph.outputs[OUTPUT].shape == shape
    values = workload.inputs(config)
    for node in graph.nodes:
        if node.op == "input":
            assert values[node.name].shape == node.shape


@pytest.mark.parametrize("side", [0, -4, 30])
def test_the_latent_must_halve_evenly(side: int) -> None:
    with pytest.raises(ValueError, match=f"the side must be a multiple of 4, got {side}"):
        UnetConfig(side=side)


@each
def test_initial_values(workload: Workload[Any]) -> None:
    values = workload.parameters(workload.inference(workload.reduced))
    for name, value in values.items():
        if name.endswith(".fused_bias") or ("norm" in name and name.endswith(".bias")):
            assert not value.any(), name
        elif "norm" in name:
            assert (value == 1).all(), name
        else:
            assert 0 < np.abs(value).max() < 0.0245, name


@each
def test_the_loss_is_that_of_the_output(workload: Workload[Any], rng: np.random.Generator) -> None:
    training, inference = (
        make(workload.reduced) for make in (workload.training, workload.inference)
    )
    inputs = draw_inputs(workload, workload.reduced, rng)
    stored = stored_parameters(training, rng)
    graph = inference.graph
    known = {n.name for n in graph.nodes if n.op == "input"}
    feeds = {**stored, **{name: inputs[name] for name in known}}
    (y,) = interpret(graph, feeds, [graph.outputs[OUTPUT]])
    graph = training.graph
    (loss,) = interpret(graph, {**stored, **inputs}, [graph.outputs[LOSS]])
    if workload is UNET:
        want = np.mean((y - inputs["target"]) ** 2)
    else:
        rows = np.arange(len(y))
        want = np.mean(np.log(np.exp(y).sum(axis=1)) - y[rows, inputs["labels"]])
    assert loss == pytest.approx(want, rel=1e-12)


@each
def test_gradients_are_the_slope_of_the_loss(
    workload: Workload[Any], rng: np.random.Generator
) -> None:
    network = workload.training(workload.reduced)
    graph, stored = network.graph, stored_parameters(network, rng)
    inputs = draw_inputs(workload, workload.reduced, rng)
    exact = {name: value.astype(np.float64) for name, value in stored.items()}
    names = [*graph.gradients]
    found = interpret(graph, {**exact, **inputs}, [*graph.gradients.values()])
    gradients = dict(zip(names, found, strict=True))

    # Along each direction every tensor has an equal share of the slope, or nearly.
    for _ in range(3):
        direction = {}
        for name, gradient in gradients.items():
            norm = np.linalg.norm(gradient)
            assert norm > 0, name
            direction[name] = rng.choice((-1.0, 1.0), gradient.shape) / norm
        slope = sum(float((gradients[name] * direction[name]).sum()) for name in names)
        up, down = (
            interpret(
                graph,
                {**inputs, **{name: exact[name] + sign * STEP * direction[name] for name in names}},
                [graph.outputs[LOSS]],
            )[0].item()
            for sign in (1, -1)
        )
        assert (up - down) / (2 * STEP) == pytest.approx(slope, rel=1e-4)


def stored_parameters(network: Network, rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = draw_parameters(network, rng)
    return {name: network.layouts[name].to_engine(value) for name, value in values.items()}
