"""Rewritten graphs on the device: packed weights, strided reads and epilogues compute the same."""

import numpy as np
import pytest
from cases import assert_close
from device_runs import VARIANTS, outputs, start, variant

from engine import ops
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
