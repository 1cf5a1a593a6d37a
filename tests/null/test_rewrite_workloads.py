"""Both rewriting engines keep what the workloads compute: outputs, losses, all gradients."""

import numpy as np
import pytest

from engine.autodiff import gradients
from engine.graph import Graph
from engine.interpret import interpret
from engine.rewrite import rewrite, rewrite_forward
from models.nn import Scope
from models.zoo import PROGRAMS, WORKLOADS

NAMES = [name for name in PROGRAMS if "-" in name]


def values(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    wanted = {**graph.outputs, **{f"gradient:{n}": g for n, g in graph.gradients.items()}}
    needed = {node.name for node in graph.nodes if node.op in ("parameter", "input")}
    given = {name: value for name, value in feeds.items() if name in needed}
    return dict(zip(wanted, interpret(graph, given, list(wanted.values())), strict=True))


def random_feeds(graph: Graph, name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    below = PROGRAMS[name].below if name in PROGRAMS else {}
    return {
        node.name: rng.integers(0, below[node.name], node.shape).astype(np.uint32)
        if node.type.dtype == "u32"
        else rng.standard_normal(node.shape) * 0.3
        for node in graph.nodes
        if node.op in ("parameter", "input")
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_gradients_of_the_rewritten_forward_pass(name: str, rng: np.random.Generator) -> None:
    workload, graph = WORKLOADS[name], Graph()
    loss = workload.loss(workload.forward(Scope(graph), workload.reduced), workload.reduced)
    parameters = graph.parameters(trainable=True)
    plain = gradients(loss, parameters)
    again = rewrite_forward(loss)
    assert (again is loss) == (name == "resnet50")
    wanted = [loss, *plain, again, *gradients(again, parameters)]
    found = interpret(graph, random_feeds(graph, f"{name}-train", rng), wanted)
    half = len(found) // 2
    scale = max(float(np.linalg.norm(value)) for value in found[1:half])
    for want, got in zip(found[:half], found[half:], strict=True):
        assert np.linalg.norm(got - want) <= 1e-9 * max(np.linalg.norm(want), scale)


@pytest.mark.parametrize("engine", ["greedy", "egraph"])
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_keeps_its_values(name: str, engine: str, rng: np.random.Generator) -> None:
    if engine == "egraph":
        pytest.importorskip("egglog")
    program = PROGRAMS[name]
    graph = program.reduced()
    feeds = random_feeds(graph, name, rng)
    expected = values(graph, feeds)
    actual = values(rewrite(graph, engine), feeds)
    assert actual.keys() == expected.keys() and len(expected) > 0
    scale = max(float(np.linalg.norm(value)) for value in expected.values())
    for key, value in expected.items():
        assert np.linalg.norm(actual[key] - value) <= 1e-6 * max(
            np.linalg.norm(value), 1e-3 * scale
        )
