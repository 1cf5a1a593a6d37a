"""Further results of an op: how they are read, checked and interpreted."""

from dataclasses import replace

import numpy as np
import pytest

from engine import ops
from engine.errors import GraphError
from engine.graph import Graph, Node, TensorType, verify
from engine.interpret import interpret


def attended() -> tuple[Graph, Node]:
    graph = Graph()
    x = graph.input("x", (2, 3, 4))
    return graph, ops.attention(x, x, x)


def test_a_further_result_has_the_type_and_value_that_its_op_gives_it() -> None:
    graph, y = attended()
    lse = ops.extra(y, 0)
    assert lse.type == TensorType((2, 3)) and y.type == TensorType((2, 3, 4))
    verify(graph)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4))
    got, total = interpret(graph, {"x": x}, [lse, ops.reduce_sum(lse, [0, 1])])
    want = np.log(np.exp(x @ x.swapaxes(1, 2) / 2).sum(axis=2))
    assert np.allclose(got, want, rtol=1e-14) and np.isclose(total[0], want.sum(), rtol=1e-14)


@pytest.mark.parametrize("index", [1, -1])
def test_results_that_the_op_lacks_are_refused(index: int) -> None:
    graph, y = attended()
    with pytest.raises(GraphError, match=f"attention has 1 further results, there is no {index}"):
        ops.extra(y, index)
    with pytest.raises(GraphError, match="input has 0 further results"):
        ops.extra(graph.nodes[0], 0)


@pytest.mark.parametrize("attrs", [{"index": 1}, {"shape": (3, 2)}, {"shape": (2, 3, 4)}])
def test_the_verifier_finds_wrong_readers(attrs: dict[str, object]) -> None:
    graph, y = attended()
    good = ops.extra(y, 0)
    bad = graph.add("extra", [y], **{**good.attrs, **attrs})
    with pytest.raises(GraphError, match=rf"%{bad.id}.*attention has no such further result"):
        verify(graph)
    graph.nodes[bad.id] = replace(bad, inputs=(graph.nodes[0],))
    with pytest.raises(GraphError, match="input has no such further result"):
        verify(graph)


def test_negative_indices_are_refused() -> None:
    graph, y = attended()
    with pytest.raises(GraphError, match="extra: index"):
        graph.add("extra", [y], index=-1, shape=(2, 3), dtype="f32")


SHAPES = ((4, 5, 8), (2, 7, 8), (2, 7, 8))
REFUSED = {
    "heads": ((3, 5, 8), *SHAPES[1:]),
    "rank": ((5, 8), *SHAPES[1:]),
    "values": (*SHAPES[:2], (2, 6, 8)),
    "width": ((4, 5, 6), *SHAPES[1:]),
    "wide": ((4, 5, 129), (2, 7, 129), (2, 7, 129)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_operands_of_attention_that_do_not_fit_are_refused(case: str) -> None:
    graph = Graph()
    q, k, v = (graph.input(n, s) for n, s in zip("qkv", REFUSED[case], strict=True))
    with pytest.raises(GraphError, match=r"attention: .* and "):
        ops.attention(q, k, v)


def test_queries_that_would_see_no_key_are_refused() -> None:
    graph = Graph()
    q, k = graph.input("q", (1, 5, 8)), graph.input("k", (1, 4, 8))
    ops.attention(q, k, k)
    with pytest.raises(GraphError, match="as many keys as queries"):
        ops.attention(q, k, k, causal=True)


def test_causal_attention_sees_keys_up_to_the_last_of_its_own() -> None:
    graph = Graph()
    q, k = graph.input("q", (1, 2, 1)), graph.input("k", (1, 4, 1))
    v = graph.input("v", (1, 4, 1))
    y = ops.attention(q, k, v, causal=True)
    feeds = {"q": np.zeros((1, 2, 1)), "k": np.ones((1, 4, 1)), "v": np.eye(4)[:, 3:][None]}
    assert interpret(graph, feeds, [y])[0].ravel().tolist() == [0, 0.25]
