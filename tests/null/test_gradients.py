"""Gradient rules in the middle of a graph, in float64, against central differences."""

import numpy as np
import pytest
from cases import CUTS, Feeds, differentiable_ops, operands, place, values_of_ops

from engine import ops
from engine.autodiff import gradients
from engine.errors import GraphError
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.op import definition

STEP = 1e-5
PROBED = 24
"""Elements probed one by one per operand; random directions cover all of them at once."""


def directions(shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    size = int(np.prod(shape))
    chosen = rng.permutation(size)[:PROBED]
    single = [np.bincount([c], minlength=size).reshape(shape).astype(float) for c in chosen]
    return [*single, *(rng.choice((-1.0, 1.0), shape) for _ in range(2))]


def check(loss: Node, sources: tuple[Node, ...], feeds: Feeds, rng: np.random.Generator) -> None:
    graph = loss.graph
    exact = {name: value.astype(np.float64) for name, value in feeds.items()}
    analytic = interpret(graph, exact, gradients(loss, sources))

    def loss_at(name: str, shift: np.ndarray) -> float:
        return interpret(graph, {**exact, name: exact[name] + shift}, [loss])[0].item()

    for source, gradient in zip(sources, analytic, strict=True):
        assert gradient.shape == source.shape
        scale = np.max(np.abs(gradient))
        assert scale > 1e-3, "the case does not exercise the rule"
        for direction in directions(source.shape, rng):
            up, down = (loss_at(source.name, sign * STEP * direction) for sign in (1, -1))
            numeric = (up - down) / (2 * STEP)
            along = (gradient * direction).sum()
            size = scale * np.sqrt(np.abs(direction).sum())
            assert abs(numeric - along) <= 1e-6 * size, (source.name, numeric, along)


@pytest.mark.parametrize("op", differentiable_ops())
def test_gradient_rule_of(op: str, rng: np.random.Generator) -> None:
    for number, sample in enumerate(definition(op).samples()):
        feeds: Feeds = {}
        case = place(Graph(), f"s{number}", op, sample, feeds, rng)
        check(case.loss, case.sources, feeds, rng)


def test_ops_without_a_rule_say_so(rng: np.random.Generator) -> None:
    missing = sorted(set(values_of_ops()) - set(differentiable_ops()) - set(CUTS))
    fused = ("activated_norm", "fused", "gated_matmul", "moved_product", "prologue")
    moved = ("join_heads", "strided", "turned_attention")
    generating = ("cached_attention", "decode_attention", "write_heads", "write_rows")
    known = (*fused, *moved, *generating)
    assert all(name.endswith("_grad") or name in known for name in missing), missing
    for name in missing:
        graph = Graph()
        sample = next(definition(name).samples())
        sources = operands(graph, name, sample, {}, rng)
        y = graph.add(name, sources, **sample.attrs)
        with pytest.raises(GraphError, match=f"{name} is not differentiable"):
            gradients(ops.reduce_sum(y, range(len(y.shape))), sources)


@pytest.mark.parametrize("name", CUTS)
def test_no_gradient_passes_through(name: str, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    sample = next(definition(name).samples())
    sources = operands(graph, name, sample, feeds, rng)
    y = ops.cast(graph.add(name, sources, **sample.attrs), "f32")
    loss = ops.add(
        ops.reduce_sum(ops.square(y), range(len(y.shape))),
        ops.reduce_sum(sources[0], range(len(sources[0].shape)), scale=3.0),
    )
    (grad,) = interpret(graph, feeds, gradients(loss, sources[:1]))
    assert np.array_equal(grad, np.full(sources[0].shape, 3.0))


def test_a_value_used_three_times_sums_its_gradients(rng: np.random.Generator) -> None:
    graph = Graph()
    x = graph.input("x", (3, 4))
    y = ops.mul(x, ops.add(ops.gelu(x), ops.permute(ops.reshape(x, (4, 3)), (1, 0))))
    loss = ops.reduce_mean(ops.square(y), range(2))
    check(loss, (x,), {"x": rng.uniform(0.5, 1.5, (3, 4))}, rng)


def test_attention_and_convolution_as_models_use_them(rng: np.random.Generator) -> None:
    graph = Graph()
    image, weight, bias = (
        graph.input(name, shape)
        for name, shape in (("image", (1, 4, 6, 3)), ("weight", (8, 27)), ("bias", (8,)))
    )
    rows = ops.reshape(ops.conv2d(image, weight, bias, 3, stride=2, padding=1), (6, 8))
    heads = ops.permute(ops.reshape(rows, (6, 2, 4)), (1, 0, 2))
    weights = ops.softmax(ops.matmul(heads, heads, transpose_b=True))
    mixed = ops.permute(ops.matmul(weights, heads), (1, 0, 2))
    loss = ops.reduce_sum(ops.square(ops.layer_norm(mixed, eps=0.1)), [2, 0, 1], scale=0.3)
    loss = ops.add(loss, ops.reduce_mean(ops.mul(mixed, mixed), range(3)))
    feeds = {n.name: rng.uniform(-1, 1, n.shape) for n in (image, weight, bias)}
    check(loss, (image, weight, bias), feeds, rng)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2), ()])
def test_reductions_over_any_axes(axes: tuple[int, ...], rng: np.random.Generator) -> None:
    graph = Graph()
    x = graph.input("x", (3, 4, 5))
    y = ops.reduce_sum(x, axes, scale=0.5)
    value = rng.uniform(-1, 1, (3, 4, 5))
    want = 0.5 * value.sum(axis=axes)
    assert np.allclose(interpret(graph, {"x": value}, [y])[0], want.reshape(y.shape), rtol=1e-13)
    assert np.allclose(
        interpret(graph, {"x": value}, [ops.reduce_mean(x, axes)])[0],
        value.mean(axis=axes).reshape(y.shape) if axes else value,
        rtol=1e-13,
    )
    loss = ops.reduce_sum(ops.square(y), range(len(y.shape)))
    check(loss, (x,), {"x": value}, rng)


def test_negative_axes_count_from_the_end() -> None:
    x = Graph().input("x", (3, 4, 5))
    assert ops.reduce_sum(x, [-1]).shape == (3, 4)
    assert ops.reduce_mean(x, [-3, -1]).shape == (4,)


def test_what_the_loss_does_not_depend_on_gets_zeros() -> None:
    graph = Graph()
    x, unused = graph.input("x", (2,)), graph.input("unused", (3, 2))
    loss = ops.reduce_sum(x, [0])
    values = interpret(graph, {"x": np.ones(2)}, gradients(loss, [unused, x]))
    assert values[0].tolist() == np.zeros((3, 2)).tolist()
    assert values[1].tolist() == [1, 1]


def test_a_seed_is_the_upstream_gradient() -> None:
    graph = Graph()
    x, seed = graph.input("x", (3,)), graph.input("seed", (3,))
    (grad,) = gradients(ops.square(x), [x], seed)
    feeds = {"x": np.array([1.0, 2, 3]), "seed": np.array([1.0, 10, 100])}
    assert interpret(graph, feeds, [grad])[0].tolist() == [2, 40, 600]


def test_losses_and_seeds_of_other_shapes_are_refused() -> None:
    graph = Graph()
    x = graph.input("x", (3,))
    with pytest.raises(GraphError, match=r"\[1\].*f32\[3\]"):
        gradients(x, [x])
    with pytest.raises(GraphError, match=r"seed.*f32\[2\]"):
        gradients(x, [x], graph.input("seed", (2,)))


def test_nothing_is_added_below_what_is_wanted() -> None:
    graph = Graph()
    frozen = graph.parameter("frozen", (4, 4), lambda rng, s: np.ones(s), trainable=False)
    trained = graph.parameter("trained", (4, 4), lambda rng, s: np.ones(s))
    below = ops.gelu(ops.matmul(graph.input("x", (2, 4)), frozen))
    loss = ops.reduce_sum(ops.matmul(below, trained), range(2))
    first = len(graph.nodes)
    gradients(loss, [trained])
    added = graph.nodes[first:]
    assert not any(frozen in node.inputs for node in added)
    assert "gelu_grad" not in {node.op for node in added}
