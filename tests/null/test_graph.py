"""Graph building: what is refused, with which words, and what the verifier sees."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cases import draw, operands

from engine import ops
from engine.errors import GraphError
from engine.graph import EXTRA, Graph, Node, TensorType, consumers, reachable, verify
from engine.op import definitions


def x(graph: Graph, *shape: int, dtype: str = "f32") -> Node:
    return graph.input(f"x{len(graph.nodes)}", shape, dtype)


# Each case: what is built, and what the message must contain: the op and every shape involved.
REFUSED: dict[str, tuple[Callable[[Graph], object], list[str]]] = {
    "broadcast": (lambda g: ops.add(x(g, 2, 3), x(g, 4)), ["add", "[2, 3]", "[4]"]),
    "inner extents": (
        lambda g: ops.matmul(x(g, 2, 3), x(g, 4, 5)),
        ["matmul", "3 and 4", "[2, 3]", "[4, 5]"],
    ),
    "transposed inner extents": (
        lambda g: ops.matmul(x(g, 2, 3), x(g, 3, 5), transpose_b=True),
        ["matmul", "3 and 5", "[2, 3]", "[3, 5]"],
    ),
    "batches": (
        lambda g: ops.matmul(x(g, 2, 3, 4), x(g, 3, 4, 5)),
        ["matmul", "[2, 3, 4]", "[3, 4, 5]"],
    ),
    "ranks": (lambda g: ops.matmul(x(g, 4), x(g, 4, 5)), ["matmul", "[4]", "[4, 5]"]),
    "product bias": (
        lambda g: g.add(
            "matmul",
            [x(g, 2, 3), x(g, 3, 5), x(g, 4)],
            transpose_a=False,
            transpose_b=False,
            epilogue=(),
        ),
        ["matmul", "epilogue operand", "f32[2, 5]", "[4]"],
    ),
    "integers": (lambda g: ops.add(x(g, 2), x(g, 2, dtype="u32")), ["add", "f32[2]", "u32[2]"]),
    "integer softmax": (lambda g: ops.softmax(x(g, 2, 3, dtype="u32")), ["softmax", "u32[2, 3]"]),
    "integer norm": (
        lambda g: ops.layer_norm(x(g, 2, 3, dtype="u32"), eps=1e-5),
        ["layer_norm", "u32[2, 3]"],
    ),
    "integer rope": (
        lambda g: ops.rope(x(g, 2, 4, dtype="u32"), x(g, 2, 2), x(g, 2, 2)),
        ["rope", "u32[2, 4]"],
    ),
    "norm weight": (
        lambda g: ops.layer_norm(x(g, 2, 3), x(g, 4), x(g, 4), eps=1e-5),
        ["layer_norm", "[2, 3]", "[4]"],
    ),
    "norm eps": (lambda g: ops.layer_norm(x(g, 2, 3), eps=0), ["layer_norm", "eps", "[2, 3]"]),
    "norm of a scalar": (lambda g: ops.layer_norm(x(g), eps=1e-5), ["layer_norm", "f32[]"]),
    "softmax of a scalar": (lambda g: ops.softmax(x(g)), ["softmax", "f32[]"]),
    "rope angles": (
        lambda g: ops.rope(x(g, 5, 8), x(g, 5, 3), x(g, 5, 3)),
        ["rope", "[5, 8]", "[5, 3]"],
    ),
    "reshape": (lambda g: ops.reshape(x(g, 3, 8), (5, 5)), ["reshape", "[5, 5]", "[3, 8]"]),
    "inferred reshape": (lambda g: ops.reshape(x(g, 3, 8), (-1, 5)), ["reshape", "[3, 8]"]),
    "negative reshape": (lambda g: ops.reshape(x(g, 3, 8), (-4, -6)), ["reshape", "[3, 8]"]),
    "permute": (lambda g: ops.permute(x(g, 3, 8), (0, 0)), ["permute", "(0, 0)", "[3, 8]"]),
    "slice": (lambda g: ops.take(x(g, 3, 8), 1, 2, 9), ["slice", "[2:9]", "[3, 8]"]),
    "empty slice": (lambda g: ops.take(x(g, 3, 8), 1, 2, 2), ["slice", "[2:2]", "[3, 8]"]),
    "slice axis": (lambda g: ops.take(x(g, 3, 8), 2, 0, 1), ["slice", "axis 2", "[3, 8]"]),
    "pad": (lambda g: ops.pad(x(g, 3, 8), 0, -1, 2), ["pad", "[3, 8]"]),
    "concat": (
        lambda g: ops.concat(x(g, 3, 8), x(g, 4, 7), 0),
        ["concat", "axis 0", "[3, 8]", "[4, 7]"],
    ),
    "expand": (lambda g: ops.expand(x(g, 3, 2), (3, 8)), ["expand", "[3, 8]", "[3, 2]"]),
    "expand to nothing": (lambda g: ops.expand(x(g, 3, 1), (3, 0)), ["expand", "[3, 1]"]),
    "reduction axis": (lambda g: ops.reduce_sum(x(g, 3, 8), [2]), ["sum", "axis 2", "[3, 8]"]),
    "affine": (lambda g: ops.affine(x(g, 3), float("nan")), ["affine", "finite", "[3]"]),
    "window": (lambda g: ops.unfold(x(g, 1, 4, 4, 3), 5), ["unfold", "[1, 4, 4, 3]"]),
    "window rank": (lambda g: ops.unfold(x(g, 4, 4, 3), 3), ["unfold", "[4, 4, 3]"]),
    "window stride": (lambda g: ops.unfold(x(g, 1, 4, 4, 3), 3, stride=0), ["unfold", "stride"]),
    "operand count": (lambda g: g.add("add", [x(g, 3)]), ["add", "2 operands", "[3]"]),
    "unknown op": (lambda g: g.add("convolve", []), ["convolve", "matmul"]),
    "source extent": (lambda g: g.input("image", (0, 3)), ["image", "[0, 3]"]),
    "source dtype": (lambda g: g.input("image", (1,), "f16"), ["image", "f16"]),
    "source name": (lambda g: (g.input("a", (1,)), g.state("a", (1,))), ["'a'", "taken"]),
    "missing source": (lambda g: g.source("weight"), ["weight"]),
    "negative integers": (lambda g: g.constant("c", np.array([-1])), ["'c'", "u32"]),
    "output twice": (lambda g: [g.output("y", x(g, 1)) for _ in range(2)], ["'y'", "taken"]),
    "output named like a source": (lambda g: g.output("x0", x(g, 1)), ["'x0'", "taken"]),
    "source named like an output": (
        lambda g: (g.output("y", x(g, 1)), g.input("y", (1,))),
        ["'y'", "taken"],
    ),
    "foreign operand": (lambda g: ops.add(x(g, 1), x(Graph(), 1)), ["add", "another graph"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ill_formed_graphs_are_refused_by_name_and_shape(name: str) -> None:
    build, words = REFUSED[name]
    with pytest.raises(GraphError) as caught:
        build(Graph())
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def sound() -> tuple[Graph, Node, Node]:
    graph = Graph()
    first = ops.affine(x(graph, 2, 3), 2.0)
    second = ops.gelu(first)
    graph.output("y", second)
    verify(graph)
    return graph, first, second


def test_verifier_sees_a_wrong_type() -> None:
    graph, first, _ = sound()
    object.__setattr__(first, "type", TensorType((3, 2)))
    with pytest.raises(GraphError, match=r"affine.*f32\[2, 3\]"):
        verify(graph)


def test_verifier_sees_a_swapped_order() -> None:
    graph, first, second = sound()
    graph.nodes[first.id], graph.nodes[second.id] = second, first
    with pytest.raises(GraphError, match="position 1"):
        verify(graph)


def test_verifier_sees_a_read_of_a_later_node() -> None:
    graph, first, second = sound()
    object.__setattr__(first, "inputs", (second,))
    with pytest.raises(GraphError, match="later"):
        verify(graph)


def test_verifier_sees_an_operand_that_is_not_in_the_graph() -> None:
    graph, first, second = sound()
    object.__setattr__(second, "inputs", (replace(first),))
    with pytest.raises(GraphError, match=f"%{second.id}"):
        verify(graph)


@pytest.mark.parametrize("nodes", [1, 50])
def test_verifier_sees_foreign_outputs_and_gradients(nodes: int) -> None:
    other = Graph()
    foreign = [x(other, 1) for _ in range(nodes)][-1]
    for named in ("outputs", "gradients"):
        graph, _, _ = sound()
        getattr(graph, named)["alien"] = foreign
        with pytest.raises(GraphError, match="alien"):
            verify(graph)


def test_verifier_sees_an_effect_that_has_none() -> None:
    graph, _, second = sound()
    graph.effects.append(second)
    with pytest.raises(GraphError, match="gelu"):
        verify(graph)


UPDATE = {
    "momentum": 0.0, "nesterov": False, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8,
    "accumulate": 1, "clip": 0.0, "multiplied": False,
}  # fmt: skip


def test_verifier_sees_a_foreign_effect() -> None:
    other, (graph, _, _) = Graph(), sound()
    lists = [x(other, 4), x(other, 3), x(other, 3), x(other, 3)]
    graph.effects.append(other.add("sgd_update", lists, **UPDATE))
    with pytest.raises(GraphError, match="sgd_update"):
        verify(graph)


@pytest.mark.parametrize("rule, kinds", [("sgd_update", 3), ("adam_update", 4)])
def test_updates_want_equal_lists(rule: str, kinds: int) -> None:
    graph = Graph()
    hyper = x(graph, 4)
    attrs = UPDATE
    graph.add(rule, [hyper, *(x(graph, 3) for _ in range(kinds))], **attrs)
    for lists in ([x(graph, 3)] * (kinds + 1), [x(graph, 3)] * (kinds - 1) + [x(graph, 2)]):
        with pytest.raises(GraphError, match=rule):
            graph.add(rule, [hyper, *lists], **attrs)
    with pytest.raises(GraphError, match=rule):
        graph.add(rule, [x(graph, 3), *[x(graph, 3)] * kinds], **attrs)


def test_every_op_infers_what_its_reference_computes() -> None:
    rng = np.random.default_rng(0)
    for name, op in definitions().items():
        samples = list(op.samples())
        assert samples or op.effect or name == EXTRA, f"{name} has no samples"
        for sample in samples:
            values = draw(sample, rng)
            types = [node.type for node in operands(Graph(), "", sample, {}, rng)]
            results = op.references(values, sample.attrs)
            inferred = (op.infer(types, sample.attrs), *op.extras(types, sample.attrs))
            assert [r.shape for r in results] == [t.shape for t in inferred], (name, sample)


def test_order_of_reachable_nodes_and_their_consumers() -> None:
    graph = Graph()
    a, unused = x(graph, 2), x(graph, 2)
    square = ops.mul(a, a)
    total = ops.add(square, a)
    assert reachable([total]) == [a, square, total]
    users = consumers(reachable([total]))
    assert users == {a: [square, square, total], square: [total], total: []}
    assert unused not in users


def test_constants_are_frozen_copies() -> None:
    value = np.arange(3.0)
    graph = Graph()
    node = graph.constant("c", value)
    value[:] = 9
    assert node.attrs["value"].tolist() == [0, 1, 2]
    assert not node.attrs["value"].flags.writeable
