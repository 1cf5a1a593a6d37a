"""Rewriting: values stay, known patterns become one kernel, gradients keep their storage."""

import numpy as np
import pytest
from cases import Feeds, assert_close
from hypothesis import given, settings
from random_graphs import programs

from engine import ops
from engine.graph import Graph, Node, verify
from engine.interpret import interpret
from engine.lower import storage_root
from engine.optim import Adam, minimize
from engine.rewrite import MAX_OPERANDS, fuse_epilogues, fuse_pointwise, merge_common, rewrite
from models.vision import training_graph

RULES = {
    "all": rewrite,
    "common": merge_common,
    "epilogues": fuse_epilogues,
    "pointwise": fuse_pointwise,
}


def outputs(graph: Graph, feeds: Feeds) -> dict[str, np.ndarray]:
    # Rewriting drops sources that no output needs.
    known = {node.name for node in graph.nodes}
    feeds = {name: value for name, value in feeds.items() if name in known}
    return dict(zip(graph.outputs, interpret(graph, feeds, [*graph.outputs.values()]), strict=True))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=150)
@given(program=programs(steps=14))
def test_rules_keep_values(rule: str, program: tuple[Graph, Feeds]) -> None:
    graph, feeds = program
    before = str(graph)
    rewritten = RULES[rule](graph)
    assert str(graph) == before, "the original changed"
    verify(rewritten)
    want, got = outputs(graph, feeds), outputs(rewritten, feeds)
    assert got.keys() == want.keys()
    for name in want:
        assert_close(got[name], want[name], 1e-12, name)
    for node in rewritten.nodes:
        assert node.op != "fused" or len(node.inputs) <= MAX_OPERANDS


def computed(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.inputs]


def test_bias_and_activation_become_the_products_epilogue() -> None:
    graph = Graph()
    x, w, b = graph.input("x", (5, 3)), graph.input("w", (4, 3)), graph.input("b", (4,))
    graph.output("y", ops.gelu(ops.linear(x, w, b)))
    (only,) = computed(rewrite(graph))
    assert only.op == "matmul" and len(only.inputs) == 3
    assert only.attrs["activation"] == "gelu" and only.attrs["transpose_b"]


@pytest.mark.parametrize("what", ["product", "biased"])
def test_values_that_are_needed_otherwise_are_not_swallowed(what: str) -> None:
    graph = Graph()
    x, w, b = graph.input("x", (5, 3)), graph.input("w", (3, 4)), graph.input("b", (4,))
    product = ops.matmul(x, w)
    biased = ops.add(product, b)
    graph.output("y", ops.gelu(biased))
    graph.output("kept", product if what == "product" else biased)
    rewritten = rewrite(graph)
    assert sorted(node.op for node in computed(rewritten)) == sorted(
        ["matmul", "fused"] if what == "product" else ["matmul", "gelu"]
    )
    assert {node.shape for node in rewritten.outputs.values()} == {(5, 4)}


def test_a_column_or_matrix_is_no_bias() -> None:
    for shape in ((5, 1), (5, 4), (1,)):
        graph = Graph()
        x, w = graph.input("x", (5, 3)), graph.input("w", (3, 4))
        graph.output("y", ops.add(ops.matmul(x, w), graph.input("b", shape)))
        assert [len(n.inputs) for n in rewrite(graph).nodes if n.op == "matmul"] == [2]


def test_pointwise_chains_become_one_node_up_to_the_binding_limit() -> None:
    graph = Graph()
    y = graph.input("x", (6, 4))
    for k in range(12):
        y = ops.add(ops.gelu(y), graph.input(f"b{k}", (6, 4)))
    graph.output("y", y)
    fused = computed(rewrite(graph))
    assert all(node.op == "fused" for node in fused)
    assert len(fused) == 2
    assert sum(len(node.attrs["steps"]) for node in fused) == 24


def test_a_value_of_another_shape_is_not_computed_again_and_again() -> None:
    graph = Graph()
    x, row = graph.input("x", (6, 4)), graph.input("row", (4,))
    graph.output("y", ops.add(x, ops.gelu(row)))
    assert [node.op for node in computed(rewrite(graph))] == ["gelu", "add"]


def test_equal_expressions_are_computed_once_and_dead_ones_never() -> None:
    graph = Graph()
    x, unused = graph.input("x", (3, 4)), graph.input("unused", (3, 4))
    ops.gelu(unused)
    graph.output("y", ops.matmul(ops.softmax(x), ops.softmax(x), transpose_b=True))
    merged = merge_common(graph)
    assert [node.op for node in merged.nodes] == ["input", "softmax", "matmul"]


def test_different_attributes_are_different_expressions() -> None:
    graph = Graph()
    x = graph.input("x", (3, 4))
    graph.output("y", ops.concat(ops.affine(x, 1 / 3), ops.affine(x, 1 / 3 + 1e-16 * 2), 0))
    assert sum(node.op == "affine" for node in merge_common(graph).nodes) == 2


def test_gradients_keep_storage_of_their_own() -> None:
    graph = Graph()
    a, b, c = (graph.parameter(name, (3, 4), lambda rng, shape: np.ones(shape)) for name in "abc")
    x = graph.input("x", (3, 4))
    # All three parameters have the same gradient.
    minimize(ops.reduce_sum(ops.mul(ops.add(ops.add(a, b), c), x), range(2)), Adam())
    rewritten = rewrite(graph)
    verify(rewritten)
    roots = [storage_root(node) for node in rewritten.gradients.values()]
    assert len(set(roots)) == 3 and all(root.inputs for root in roots)


def test_the_training_graph_shrinks_and_keeps_its_loss_and_gradients() -> None:
    graph = training_graph(Adam(), depth=1, size=16)
    rewritten = rewrite(graph)
    verify(rewritten)
    assert len(rewritten.effects) == 1
    assert [*rewritten.gradients] == [p.name for p in rewritten.parameters(trainable=True)]
    assert len(computed(rewritten)) < 0.95 * len(computed(graph))
    rng = np.random.default_rng(3)
    feeds = {p.name: rng.normal(0, 0.05, p.shape) for p in graph.parameters()}
    feeds["image"] = rng.uniform(0, 1, (16, 16, 3))
    pairs = [(graph.outputs["loss"], rewritten.outputs["loss"])]
    pairs += [(graph.gradients[n], rewritten.gradients[n]) for n in graph.gradients]
    want = interpret(graph, feeds, [a for a, _ in pairs])
    got = interpret(rewritten, feeds, [b for _, b in pairs])
    for name, g, w in zip(["loss", *graph.gradients], got, want, strict=True):
        assert_close(g, w, 1e-9, name)
