"""Convolution by every kernel variant, pooling and upsampling, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from cases import Feeds, assert_close
from device_runs import VARIANTS, outputs, variant

import engine.ops.conv as conv_ops
from engine import ops
from engine.autodiff import gradients
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.specialize import TILES, DeviceFacts, MatmulChoice, choose_matmul

pytestmark = pytest.mark.gpu

Pair = tuple[int, int]
Case = tuple[tuple[int, ...], int, Pair, Pair, Pair]
"""Image [n, h, w, c], out channels, kernel, stride, padding."""

CASES: list[Case] = [
    ((1, 1, 1, 3), 2, (1, 1), (1, 1), (0, 0)),
    ((2, 5, 7, 4), 8, (3, 3), (1, 1), (1, 1)),
    ((1, 13, 11, 3), 12, (7, 7), (2, 2), (3, 3)),
    ((3, 9, 7, 8), 4, (3, 3), (2, 2), (1, 1)),
    ((2, 7, 5, 4), 5, (1, 1), (2, 2), (0, 0)),
    ((1, 9, 10, 5), 3, (4, 2), (3, 1), (2, 0)),
    ((1, 8, 12, 3), 7, (4, 4), (4, 4), (0, 0)),
    ((1, 6, 7, 4), 4, (2, 1), (3, 4), (1, 0)),
    ((1, 3, 4, 2), 3, (5, 5), (1, 1), (4, 3)),
]


def add_convolution(graph: Graph, feeds: Feeds, case: Case, rng: np.random.Generator) -> None:
    """silu(conv2d(x) + bias) and the gradients of all three, under an uneven upstream."""
    image, out, kernel, stride, padding = case
    taps = kernel[0] * kernel[1] * image[3]
    x, weight, bias = (
        graph.input(f"{case}.{name}", shape)
        for name, shape in (("x", image), ("weight", (out, taps)), ("bias", (out,)))
    )
    y = ops.silu(ops.conv2d(x, weight, bias, kernel, stride=stride, padding=padding))
    upstream = graph.input(f"{case}.upstream", y.shape)
    for node in (x, weight, bias, upstream):
        feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)
    graph.output(f"{case} y", y)
    sources = [x, weight, bias]
    for source, grad in zip(sources, gradients(y, sources, upstream), strict=True):
        graph.output(f"d{source.name}", grad)


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts) -> None:
    got = outputs(gpu, graph, feeds, facts)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        assert_close(got[name], value, 1e-5, name)


@pytest.mark.parametrize("chosen", VARIANTS)
def test_convolutions(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    for case in CASES:
        add_convolution(graph, feeds, case, rng)
    compare(gpu, graph, feeds, variant(gpu, chosen))


# Tiles of other extents differ in nothing that operand readers see: test_matmul has them all.
FORCED = [
    TILES[0],
    TILES[-1],
    MatmulChoice("direct", 4, 4, 4, 4, 4),
    MatmulChoice("direct", 8, 8, 4, 8, 8),
]


@pytest.mark.parametrize("choice", FORCED, ids=lambda c: f"{c.variant} {c.tile_m}x{c.tile_n}")
def test_every_tile(
    choice: MatmulChoice, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows, columns and depth than one tile, in phases of unequal depth."""
    monkeypatch.setattr(conv_ops, "choose_matmul", lambda *_: choice)
    graph, feeds = Graph(), {}
    add_convolution(graph, feeds, ((2, 17, 15, 12), 36, (3, 3), (2, 2), (1, 1)), rng)
    add_convolution(graph, feeds, ((1, 12, 13, 7), 5, (3, 2), (1, 1), (1, 0)), rng)
    compare(gpu, graph, feeds, gpu.facts)


def test_split_k(gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight gradient is a small result of a long sum; one that no split divides."""
    split = replace(TILES[-1], split_k=3)

    def choose(batch: int, m: int, n: int, k: int, facts: DeviceFacts) -> MatmulChoice:
        return split if batch == 1 else choose_matmul(batch, m, n, k, facts)

    monkeypatch.setattr(conv_ops, "choose_matmul", choose)
    graph, feeds = Graph(), {}
    add_convolution(graph, feeds, ((2, 15, 13, 4), 5, (3, 3), (1, 1), (1, 1)), rng)
    add_convolution(graph, feeds, ((2, 15, 13, 3), 8, (3, 3), (2, 2), (1, 1)), rng)
    compare(gpu, graph, feeds, variant(gpu, "gpu"))


def test_stems_split_their_weight_gradient(gpu: Gpu) -> None:
    """7x7 over 224 x 224: 10 tiles of result, 12544 positions to sum."""
    assert choose_matmul(1, 64, 147, 112 * 112, variant(gpu, "gpu")).split_k > 8


@pytest.mark.parametrize("chosen", VARIANTS)
def test_convolution_over_time(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    for channels, out, stride in ((5, 8, 1), (4, 3, 2)):
        x, w, b = (
            graph.input(f"{name}{channels}", shape)
            for name, shape in (
                ("x", (2, 13, channels)),
                ("w", (out, 3 * channels)),
                ("b", (out,)),
            )
        )
        for node in (x, w, b):
            feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)
        y = ops.gelu(ops.conv1d(x, w, b, 3, stride=stride, padding=1))
        assert y.shape == (2, 13 if stride == 1 else 7, out)
        loss = ops.reduce_sum(ops.square(y), range(3))
        graph.output(f"loss {channels}", loss)
        for node, grad in zip((x, w, b), gradients(loss, [x, w, b]), strict=True):
            graph.output(f"d{node.name}", grad)
    compare(gpu, graph, feeds, variant(gpu, chosen))


def test_two_runs_are_bit_equal(gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    add_convolution(graph, feeds, ((2, 15, 13, 4), 8, (3, 3), (2, 2), (1, 1)), rng)
    facts = variant(gpu, "gpu")
    first, second = (outputs(gpu, graph, feeds, facts) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in graph.outputs)


def pooled_and_gradient(gpu: Gpu, x: np.ndarray, kernel: int, **window: int) -> list[np.ndarray]:
    graph = Graph()
    source = graph.input("x", x.shape)
    y = ops.max_pool2d(source, kernel, **window)
    counts = np.arange(1, y.type.size + 1, dtype=np.float32).reshape(y.shape)
    (grad,) = gradients(y, [source], graph.constant("upstream", counts))
    graph.output("y", y)
    graph.output("dx", grad)
    got = outputs(gpu, graph, {"x": x})
    want = interpret(graph, {"x": x}, [y, grad])
    assert np.array_equal(got["y"], want[0]) and np.array_equal(got["dx"], want[1])
    return [got["y"], got["dx"]]


@pytest.mark.parametrize("channels", [1, 4])
def test_of_equal_pixels_the_first_gets_the_gradient(channels: int, gpu: Gpu) -> None:
    x = np.full((1, 4, 4, channels), -2.0, np.float32)
    y, dx = pooled_and_gradient(gpu, x, 2)
    assert (y == -2).all()
    assert np.array_equal(np.argwhere(dx[0, :, :, 0]), [[0, 0], [0, 2], [2, 0], [2, 2]])


def test_ties_in_overlapping_windows(gpu: Gpu, rng: np.random.Generator) -> None:
    """Small integers: nearly every window has several maxima, often in other lanes of a vec4."""
    for channels in (3, 8):
        x = rng.integers(-2, 1, (2, 9, 7, channels)).astype(np.float32)
        _, dx = pooled_and_gradient(gpu, x, 3, stride=2, padding=1)
        count = 2 * 5 * 4 * channels
        assert dx.sum() == count * (count + 1) / 2


def test_pooling_defaults_to_windows_side_by_side(gpu: Gpu) -> None:
    graph = Graph()
    x = graph.input("x", (1, 4, 6, 1))
    value = np.arange(24, dtype=np.float32).reshape(1, 4, 6, 1)
    graph.output("max", ops.max_pool2d(x, 2))
    graph.output("avg", ops.avg_pool2d(x, (2, 3)))
    graph.output("padded", ops.avg_pool2d(x, 2, padding=1))
    graph.output("inside", ops.avg_pool2d(x, 2, padding=1, count_include_pad=False))
    graph.output("global", ops.global_avg_pool(x))
    got = outputs(gpu, graph, {"x": value})
    assert got["max"].ravel().tolist() == [7, 9, 11, 19, 21, 23]
    assert got["avg"].ravel().tolist() == [4, 7, 16, 19]
    assert got["padded"][0, 0, :2, 0].tolist() == [0, 0.75]
    assert got["inside"][0, 0, :2, 0].tolist() == [0, 1.5]
    assert got["global"].tolist() == [[11.5]]


def test_upsampling_of_a_step(gpu: Gpu) -> None:
    graph = Graph()
    x = graph.input("x", (1, 1, 2, 1))
    graph.output("nearest", ops.upsample_nearest(x, (1, 3)))
    graph.output("bilinear", ops.upsample_bilinear(x, (1, 2)))
    got = outputs(gpu, graph, {"x": np.array([1, 3], np.float32).reshape(1, 1, 2, 1)})
    assert got["nearest"].ravel().tolist() == [1, 1, 1, 3, 3, 3]
    assert got["bilinear"].ravel().tolist() == [1, 1.5, 2.5, 3]


def small_unet(graph: Graph) -> tuple[Node, list[Node]]:
    """Down by a strided convolution, up by either upsampling, pooled at the end."""
    x = graph.input("x", (2, 6, 10, 4))
    down = graph.input("down", (8, 36))
    mix = graph.input("mix", (4, 8))
    y = ops.relu(ops.conv2d(x, down, None, 3, stride=2, padding=1))
    y = ops.conv2d(y, mix, None, 1)
    y = ops.add(ops.upsample_nearest(y, 2), ops.upsample_bilinear(y, 2))
    y = ops.max_pool2d(ops.concat(y, x, 3), 3, stride=2, padding=1)
    return ops.reduce_sum(ops.square(ops.global_avg_pool(y)), range(2)), [x, down, mix]


@pytest.mark.parametrize("chosen", VARIANTS)
def test_a_network_of_all_of_them(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph = Graph()
    loss, sources = small_unet(graph)
    graph.output("loss", loss)
    feeds = {s.name: rng.uniform(-1, 1, s.shape).astype(np.float32) for s in sources}
    for source, grad in zip(sources, gradients(loss, sources), strict=True):
        graph.output(f"d{source.name}", grad)
    compare(gpu, graph, feeds, variant(gpu, chosen))
