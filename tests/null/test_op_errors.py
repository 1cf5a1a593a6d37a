"""Ill-typed operands of normalisations, losses, lookups and the like are refused at build."""

import re
from collections.abc import Callable

import pytest

from engine import ops
from engine.errors import GraphError
from engine.graph import Graph, Node


def f(graph: Graph, *shape: int) -> Node:
    return graph.input(f"x{len(graph.nodes)}", shape)


def u(graph: Graph, *shape: int) -> Node:
    return graph.input(f"x{len(graph.nodes)}", shape, "u32")


def _group_norm(g: Graph, groups: int, *shape: int, eps: float = 1e-5) -> Node:
    return ops.group_norm(f(g, *shape), f(g, shape[-1]), f(g, shape[-1]), groups, eps=eps)


REFUSED: dict[str, tuple[Callable[[Graph], object], str]] = {
    "unary of integers": (lambda g: ops.relu(u(g, 3)), r"relu: .*f32.*u32\[3\]"),
    "binary of integers": (lambda g: ops.maximum(f(g, 3), u(g, 3)), r"maximum: .*u32\[3\]"),
    "binary shapes": (lambda g: ops.greater(f(g, 3), f(g, 4)), r"greater: .*f32\[3\].*f32\[4\]"),
    "rms weight": (
        lambda g: ops.rms_norm(f(g, 2, 5), f(g, 4), eps=1e-5),
        r"rms_norm: weight must be \[5\].*\[2, 5\].*\[4\]",
    ),
    "rms bias": (
        lambda g: g.add("rms_norm", [f(g, 2, 5), f(g, 5), f(g, 5)], eps=1e-5),
        r"rms_norm: takes x, weight, or x alone",
    ),
    "rms eps": (lambda g: ops.rms_norm(f(g, 2, 5), eps=-1), r"rms_norm: eps.*\[2, 5\]"),
    "rms eps missing": (lambda g: g.add("rms_norm", [f(g, 5)]), r"rms_norm: .*'eps' is missing"),
    "integer rows": (lambda g: ops.rms_norm(u(g, 2, 5), eps=1), r"rms_norm: .*u32\[2, 5\]"),
    "group rank": (lambda g: _group_norm(g, 2, 4, 6), r"group_norm: x must be \[n, h, w, c\].*6"),
    "groups": (lambda g: _group_norm(g, 4, 1, 2, 2, 6), r"group_norm: 4 groups.*\[1, 2, 2, 6\]"),
    "no groups": (lambda g: _group_norm(g, 0, 1, 2, 2, 6), r"group_norm: 0 groups"),
    "group weight": (
        lambda g: ops.group_norm(f(g, 1, 2, 2, 6), f(g, 2), f(g, 2), 2, eps=1e-5),
        r"group_norm: weight and bias must be \[6\].*f32\[2\]",
    ),
    "log_softmax of integers": (lambda g: ops.log_softmax(u(g, 2)), r"log_softmax: .*u32\[2\]"),
    "float labels": (
        lambda g: ops.cross_entropy(f(g, 4, 7), f(g, 4)),
        r"cross_entropy: labels must be u32 \[4\].*f32\[4, 7\].*f32\[4\]",
    ),
    "label count": (
        lambda g: ops.cross_entropy(f(g, 4, 7), u(g, 5)),
        r"cross_entropy: labels must be u32 \[4\].*u32\[5\]",
    ),
    "logit rank": (lambda g: ops.cross_entropy(f(g, 4), u(g, 4)), r"cross_entropy: logits.*\[4\]"),
    "class weights": (
        lambda g: ops.cross_entropy(f(g, 4, 7), u(g, 4), f(g, 4)),
        r"cross_entropy: weights must be f32 \[7\]",
    ),
    "ignored label": (
        lambda g: ops.cross_entropy(f(g, 4, 7), u(g, 4), ignore_index=-100),
        r"cross_entropy: ignore must be -1 or a u32",
    ),
    "mse shapes": (lambda g: ops.mse(f(g, 4, 7), f(g, 5)), r"sub: .*\[4, 7\].*\[5\]"),
    "float ids": (lambda g: ops.embedding(f(g, 4), f(g, 9, 3)), r"gather: .*u32.*f32\[4\]"),
    "table rank": (lambda g: ops.embedding(u(g, 4), f(g, 9)), r"embedding: .*matrix.*f32\[9\]"),
    "gather of a scalar": (lambda g: ops.gather(f(g), u(g, 2)), r"gather: .*rank.*f32\[\]"),
    "scatter shape": (
        lambda g: ops.scatter_add(f(g, 4, 3), u(g, 5), 9),
        r"scatter_add: .*f32\[4, 3\].*u32\[5\]",
    ),
    "scatter rows": (lambda g: ops.scatter_add(f(g, 4, 3), u(g, 4), 0), r"scatter_add: "),
    "odd swiglu": (lambda g: ops.swiglu_concat(f(g, 2, 7)), r"swiglu_concat: .*\[2, 7\]"),
    "cast to itself": (lambda g: g.add("cast", [f(g, 2)], dtype="f32"), r"cast: .*f32\[2\]"),
    "cast to nothing": (lambda g: ops.cast(f(g, 2), "f16"), r"cast: dtype must be f32 or u32"),
    "split": (lambda g: ops.split(f(g, 2, 7), 1, [3, 3]), r"split: lengths \[3, 3\].*\[2, 7\]"),
    "empty part": (lambda g: ops.split(f(g, 7), 0, [7, 0]), r"slice: \[7:7\]"),
    "concat of integers": (lambda g: ops.concat(u(g, 2), u(g, 2), 0), r"concat: .*u32\[2\]"),
    "reduction axis": (lambda g: ops.reduce_max(f(g, 3, 8), [2]), r"axis 2.*\[3, 8\]"),
    "argmax of integers": (lambda g: ops.argmax(u(g, 3), 0), r"argmax: .*u32\[1, 3, 1\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    build, pattern = REFUSED[name]
    with pytest.raises(GraphError) as caught:
        build(Graph())
    message = str(caught.value)
    assert "\n" not in message and re.search(pattern, message), message


def test_many_parts_join_in_few_launches() -> None:
    graph = Graph()
    parts = [f(graph, 1, 2) for _ in range(15)]
    assert ops.concatenate(parts, 0).shape == (15, 2)
    assert sum(node.op == "concat" for node in graph.nodes) == 3
    assert ops.concatenate(parts[:1], 0) is parts[0]


def test_casts_to_the_same_type_add_nothing() -> None:
    x = f(Graph(), 3)
    assert ops.cast(x, "f32") is x and len(x.graph.nodes) == 1
