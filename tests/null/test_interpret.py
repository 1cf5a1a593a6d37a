"""The float64 interpreter against values worked out by hand."""

import numpy as np
import pytest

from engine import ops
from engine.errors import GraphError
from engine.graph import Graph
from engine.interpret import interpret

PLAIN = {"momentum": 0.0, "nesterov": False, "accumulate": 1, "clip": 0.0, "multiplied": False}


def test_values_in_float64() -> None:
    graph = Graph()
    a = graph.input("a", (2, 2))
    b = graph.constant("b", np.array([10.0, 20.0]))
    product = ops.matmul(a, a, transpose_b=True)
    total = ops.reduce_sum(ops.add(product, b), [0, 1])
    tiny = 1e-12  # lost in float32
    feed = np.array([[1.0 + tiny, 0], [0, 2]])
    got_product, got_total = interpret(graph, {"a": feed}, [product, total])
    assert got_product.dtype == np.float64
    assert np.allclose(got_product, [[1 + 2 * tiny, 0], [0, 4]], rtol=1e-15)
    assert got_total.tolist() == pytest.approx([65 + 2 * tiny], rel=1e-15)


def test_state_starts_at_zero_and_integers_stay_integers() -> None:
    graph = Graph()
    state, index = graph.state("m", (2,)), graph.input("i", (3,), "u32")
    got_state, got_index = interpret(graph, {"i": np.array([1, 2, 3])}, [state, index])
    assert got_state.tolist() == [0, 0] and got_index.dtype == np.uint32
    (fed,) = interpret(graph, {"m": np.ones(2)}, [state])
    assert fed.tolist() == [1, 1]


def test_faults_are_named() -> None:
    graph, other = Graph(), Graph()
    a = graph.input("a", (2,))
    hyper = graph.input("h", (4,))
    effect = graph.add("sgd_update", [hyper, a, a, a], **PLAIN)
    feeds = {"a": np.zeros(2), "h": np.zeros(4)}
    with pytest.raises(GraphError, match="'a' has no value"):
        interpret(graph, {}, [a])
    with pytest.raises(GraphError, match=r"\[3\]"):
        interpret(graph, {"a": np.zeros(3)}, [a])
    with pytest.raises(GraphError, match="'typo'"):
        interpret(graph, {**feeds, "typo": np.zeros(1)}, [a])
    with pytest.raises(GraphError, match="effect"):
        interpret(graph, feeds, [effect])
    with pytest.raises(GraphError, match="another graph"):
        interpret(graph, feeds, [other.input("a", (2,))])
