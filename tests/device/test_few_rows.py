"""Plans of few rows, in which products, attention and caches do what launches before them did."""

from dataclasses import replace

import numpy as np
import pytest
from cases import assert_close
from device_runs import kernel_labels, outputs, start, variant

from engine import ops
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.specialize import DeviceFacts
from models.nn import Scope
from models.smollm2 import SMOLLM2, predict
from models.smollm2_cached import continuation

pytestmark = pytest.mark.gpu

SIZES = replace(SMOLLM2.reduced, hidden=48, head=8, mlp=68)
GONE = ("rms_norm", "rope", "strided", "write_rows", "decode_attention_merge")
"""Beginnings of the labels of launches of which none should be left."""


def weights(graph: Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        node.name: rng.normal(0, 0.3, node.shape).astype(np.float32)
        for node in graph.nodes
        if node.op == "parameter"
    }


def labels(graph: Graph, facts: DeviceFacts) -> list[str]:
    return kernel_labels(compile_graph(graph, facts))


@pytest.mark.parametrize("device", ["gpu", "small"])
def test_a_text_of_one_token(device: str, gpu: Gpu, rng: np.random.Generator) -> None:
    facts = variant(gpu, device)
    graph = SMOLLM2.inference(replace(SIZES, tokens=1)).graph
    feeds = weights(graph, rng) | {"ids": np.array([5], np.uint32)}
    plan = compile_graph(graph, facts)
    assert not [label for label in kernel_labels(plan) if label.startswith(GONE)]
    # What a checkpoint holds can be loaded.
    assert {node.name for node in graph.parameters()} <= plan.tensors.keys()
    (want,) = interpret(graph, feeds, [*graph.outputs.values()])
    (got,) = outputs(gpu, graph, feeds, facts).values()
    assert_close(got, want, 1e-5, device)


def test_a_text_that_goes_on(gpu: Gpu, rng: np.random.Generator) -> None:
    """Token after token against a cache, and all at once."""
    ids = rng.integers(0, SIZES.vocabulary, 4).astype(np.uint32)
    whole = Scope(Graph())
    logits = predict(whole, replace(SIZES, tokens=len(ids)))
    feeds = weights(whole.graph, rng)
    (want,) = interpret(whole.graph, feeds | {"ids": ids}, [logits])
    facts = variant(gpu, "small")
    graph = continuation(SIZES, 1, 9).graph
    assert not [label for label in labels(graph, facts) if label.startswith(GONE)]
    session = start(gpu, graph, feeds, facts)
    for position, one in enumerate(ids):
        session.write("ids", np.array([one], np.uint32))
        session.write("position", np.array([position], np.uint32))
        session.run()
        assert_close(session.read("logits"), want[:, position], 1e-5, f"token {position}")


@pytest.mark.parametrize("device", ["gpu", "small"])
def test_heads_turned_as_they_are_read(device: str, gpu: Gpu, rng: np.random.Generator) -> None:
    tokens, width = 70, 24
    graph, feeds = Graph(), {}
    x = graph.input("x", (2 * tokens, 4 * width))
    angles = [graph.input(name, (tokens, width // 2)) for name in ("cosine", "sine")]
    for node in (x, *angles):
        feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)
    attrs = {"heads": 2, "kv_heads": 1, "width": width, "images": 2, "causal": True, "scale": 0.2}
    places = ((0, width), (0, 0), (0, 3 * width))
    y = graph.add("turned_attention", [x, *angles], **attrs, places=places, turned=("q", "k"))
    graph.output("y", ops.relu(y))
    (want,) = interpret(graph, feeds, [graph.outputs["y"]])
    assert_close(outputs(gpu, graph, feeds, variant(gpu, device))["y"], want, 1e-5, device)
