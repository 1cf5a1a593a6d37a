"""Launches that do more than one op: products finished by those who read them, column sums, packed
gradients. Values and gradients of a whole block against the float64 interpreter.
"""

from collections.abc import Callable

import numpy as np
import pytest
from cases import assert_close
from device_runs import kernel_labels, start, variant

from engine import ops
from engine.check import check_plan
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.optim import keep_gradients

pytestmark = pytest.mark.gpu

TOKENS, WIDTH, HEADS, KEY_HEADS = 6, 512, 4, 2
DEEP = 520
"""Deep enough for split-K."""
MOVED = {"permute", "strided", "slice", "concat", "pad", "copy", "add"}
"""Launches of which none should be left."""


def parameter(graph: Graph, name: str, *shape: int) -> Node:
    return graph.parameter(name, shape, lambda rng, s: rng.normal(0, 0.05, s))


def transformer(graph: Graph) -> Node:
    """Grouped attention with turned heads, then a gated layer, each behind a norm."""
    x = graph.input("x", (TOKENS, WIDTH))
    h = ops.rms_norm(x, parameter(graph, "norm1", WIDTH), eps=1e-5)
    cosine, sine = (graph.constant(f"angles{k}", np.full((TOKENS, 4), 0.5 + k)) for k in range(2))

    def heads(name: str, count: int) -> Node:
        columns = ops.linear(h, parameter(graph, name, count * 8, WIDTH))
        return ops.permute(ops.reshape(columns, (TOKENS, count, 8)), (1, 0, 2))

    q = ops.rope(heads("q", HEADS), cosine, sine)
    k = ops.rope(heads("k", KEY_HEADS), cosine, sine)
    mixed = ops.permute(ops.attention(q, k, heads("v", KEY_HEADS), causal=True), (1, 0, 2))
    flat = ops.reshape(mixed, (TOKENS, HEADS * 8))
    x = ops.add(x, ops.linear(flat, parameter(graph, "o", WIDTH, HEADS * 8)))
    h = ops.rms_norm(x, parameter(graph, "norm2", WIDTH), eps=1e-5)
    gate, up = (ops.linear(h, parameter(graph, name, 640, WIDTH)) for name in ("gate", "up"))
    x = ops.add(x, ops.linear(ops.swiglu(gate, up), parameter(graph, "down", WIDTH, 640)))
    weight, bias = parameter(graph, "norm3", WIDTH), parameter(graph, "bias3", WIDTH)
    return ops.layer_norm(x, weight, bias, eps=1e-5)


def convolutional(graph: Graph) -> Node:
    """A split convolution with bias and GELU before a group norm, whose gradient is split too."""
    x = graph.input("x", (2, 5, 7, DEEP))
    y = ops.conv2d(x, parameter(graph, "w", 16, 9 * DEEP), parameter(graph, "b", 16), 3, padding=1)
    y = ops.gelu(y)
    y = ops.group_norm(y, parameter(graph, "weight", 16), parameter(graph, "bias", 16), 4, eps=1e-5)
    wide = ops.conv2d(y, parameter(graph, "out", DEEP, 16), None, 1)
    return ops.add(wide, x)


@pytest.mark.parametrize("build", [transformer, convolutional])
@pytest.mark.parametrize("chosen", ["gpu", "small"])
def test_block(
    build: Callable[[Graph], Node], chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph = Graph()
    y = graph.output("y", build(graph))
    target = graph.constant("target", np.linspace(-1, 1, y.type.size).reshape(y.shape))
    keep_gradients(graph.output("loss", ops.mse(y, target)))
    fed = [node for node in graph.nodes if node.op in ("input", "parameter")]
    feeds = {node.name: rng.normal(0, 0.1, node.shape).astype(np.float32) for node in fed}
    facts = variant(gpu, chosen)
    session = start(gpu, graph, feeds, facts)
    check_plan(session.plan, facts)
    labels = kernel_labels(session.plan)
    assert MOVED.isdisjoint(labels)
    split = sum("_split" in label for label in labels)
    assert labels.count("matmul_sum_splits") <= split - 2
    session.run()
    wanted = {**graph.outputs, **{f"gradient:{n}": g for n, g in graph.gradients.items()}}
    values = interpret(graph, feeds, [*wanted.values()])
    for name, want in zip(wanted, values, strict=True):
        assert_close(session.read(name), want, 2e-5, name)


@pytest.mark.parametrize("width", [23, 24])
def test_concatenation_finishes_a_product(width: int, gpu: Gpu, rng: np.random.Generator) -> None:
    graph = Graph()
    x, row = graph.input("x", (9, 640)), graph.input("row", (2, width))
    y = ops.linear(x, parameter(graph, "w", width, 640), parameter(graph, "b", width))
    graph.output("joined", ops.concatenate([row, y, row], 0))
    graph.output("product", ops.softmax(y))
    z = ops.linear(x, parameter(graph, "v", width, 640))
    graph.output("twice", ops.concat(z, z, 1))
    fed = [node for node in graph.nodes if node.op in ("input", "parameter")]
    feeds = {node.name: rng.normal(0, 0.1, node.shape).astype(np.float32) for node in fed}
    session = start(gpu, graph, feeds, variant(gpu, "gpu"))
    labels = kernel_labels(session.plan)
    assert sum("_split" in label for label in labels) == 3
    # What a concatenation reads twice it cannot also write.
    assert labels.count("matmul_sum_splits") == 1
    session.run()
    wanted = interpret(graph, feeds, [*graph.outputs.values()])
    for name, want in zip(graph.outputs, wanted, strict=True):
        assert_close(session.read(name), want, 1e-5, name)
