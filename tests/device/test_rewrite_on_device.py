"""Rewritten graphs on the device: packed weights, strided reads and epilogues compute the same."""

import numpy as np
import pytest
from cases import assert_close
from device_runs import VARIANTS, kernel_labels, outputs, start, variant

from engine import ops
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.rewrite import rewrite

pytestmark = pytest.mark.gpu

WIDTH, ROWS, HEADS = 64, 7, 2


def parameter(graph: Graph, name: str, *shape: int) -> Node:
    return graph.parameter(name, shape, lambda rng, s: rng.normal(0, 0.2, s))


def block(graph: Graph) -> Node:
    """Attention of three packed projections, then a packed gated layer, with residuals."""
    x = graph.input("x", (ROWS, WIDTH))
    parts = [ops.linear(x, parameter(graph, name, WIDTH, WIDTH)) for name in "qkv"]
    split = [ops.reshape(part, (ROWS, HEADS, WIDTH // HEADS)) for part in parts]
    q, k, v = (ops.permute(part, (1, 0, 2)) for part in split)
    mixed = ops.matmul(ops.softmax(ops.matmul(q, k, transpose_b=True)), v)
    flat = ops.reshape(ops.permute(mixed, (1, 0, 2)), (ROWS, WIDTH))
    bias = parameter(graph, "bias", WIDTH)
    y = ops.add(x, ops.linear(flat, parameter(graph, "o", WIDTH, WIDTH), bias))
    gate, up = (ops.linear(y, parameter(graph, name, 2 * WIDTH, WIDTH)) for name in ("g", "u"))
    down = parameter(graph, "down", WIDTH, 2 * WIDTH)
    return ops.add(y, ops.linear(ops.swiglu(gate, up), down))


@pytest.mark.parametrize("chosen", VARIANTS)
def test_packed_block(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph = Graph()
    graph.output("y", block(graph))
    made = [node.op for node in rewrite(graph).nodes]
    assert made.count("packed_matmul") == made.count("gated_matmul") == 1
    assert made.count("strided") == 3
    fed = [node for node in graph.nodes if node.op in ("input", "parameter")]
    feeds = {node.name: rng.normal(0, 0.2, node.shape).astype(np.float32) for node in fed}
    (want,) = interpret(graph, feeds, [graph.outputs["y"]])
    for optimize in (True, False):
        got = outputs(gpu, graph, feeds, variant(gpu, chosen), optimize=optimize)
        assert_close(got["y"], want, 1e-5, f"optimize={optimize}")


def test_packed_parameters_are_read_and_written_by_their_names(
    gpu: Gpu, rng: np.random.Generator
) -> None:
    graph = Graph()
    graph.output("y", block(graph))
    fed = [node for node in graph.nodes if node.op in ("input", "parameter")]
    feeds = {node.name: rng.normal(0, 0.2, node.shape).astype(np.float32) for node in fed}
    session = start(gpu, graph, feeds, gpu.facts)
    feeds["k"] = rng.normal(0, 0.2, feeds["k"].shape).astype(np.float32)
    session.write("k", feeds["k"])
    session.run()
    assert_close(session.read("y"), interpret(graph, feeds, [graph.outputs["y"]])[0], 1e-5)
    assert all(np.array_equal(session.read(name), feeds[name]) for name in "qkv")


def shuffled(x: Node) -> Node:
    """[1, h, w, 4 c] as [1, 2 h, 2 w, c]."""
    _, rows, columns, channels = x.shape
    split = ops.reshape(x, (1, rows, columns, 2, 2, channels // 4))
    image = ops.permute(split, (0, 1, 3, 2, 4, 5))
    return ops.reshape(image, (1, 2 * rows, 2 * columns, channels // 4))


@pytest.mark.parametrize("chosen", VARIANTS)
def test_products_write_their_result_permuted(
    chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    """Deep sums, which a norm and a launch of their own finish; not where something else reads."""
    graph = Graph()
    x = graph.input("x", (1, 5, 3, 640))
    bias, weights = parameter(graph, "bias", 64), parameter(graph, "w", 64, 640)
    wide = shuffled(ops.linear(x, weights, bias))
    normed = ops.layer_norm(wide, eps=1e-2)
    hidden = ops.linear(normed, parameter(graph, "hidden", 40, 16))
    residual = graph.input("residual", (1, 10, 6, 16))
    detail = ops.conv2d(hidden, parameter(graph, "conv", 16, 360), None, 3, padding=1)
    graph.output("detail", shuffled(ops.add(residual, ops.gelu(detail))))
    graph.output("read twice", shuffled(hidden))
    graph.output("added", ops.add(normed, wide))
    made = [node.op for node in rewrite(graph).nodes]
    assert made.count("moved_product") == 2 and made.count("permute") == 1
    fed = [node for node in graph.nodes if node.op in ("input", "parameter")]
    feeds = {node.name: rng.normal(0, 0.2, node.shape).astype(np.float32) for node in fed}
    want = interpret(graph, feeds, [*graph.outputs.values()])
    facts = variant(gpu, chosen)
    labels = kernel_labels(compile_graph(graph, facts))
    if chosen != "cpu":
        # Two are split; the norm finishes one of them, and writes it for its other reader.
        assert sum("_split" in label for label in labels) == 3
        assert labels.count("matmul_sum_splits") == 1
    for optimize in (True, False):
        got = outputs(gpu, graph, feeds, facts, optimize=optimize)
        for name, value in zip(graph.outputs, want, strict=True):
            assert_close(got[name], value, 1e-5, f"{name}, optimize={optimize}")
