"""Normalisation, softmax, losses and lookups where the generic cases do not reach: long rows and
groups in slices, means far from zero, extreme logits, repeated and foreign indices.
"""

import numpy as np
import pytest
from cases import Feeds, assert_close, place
from device_runs import kernel_labels, outputs, variant

from engine import ops
from engine.autodiff import gradients
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.op import Sample

pytestmark = pytest.mark.gpu

BOTH = pytest.mark.parametrize("chosen", ["cpu", "gpu"])


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, chosen: str, tolerance: float = 1e-5) -> None:
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        assert_close(got[name], value, tolerance, name)


def output_gradients(graph: Graph, loss: Node, sources: tuple[Node, ...]) -> None:
    for source, grad in zip(sources, gradients(loss, sources), strict=True):
        graph.output(f"d {source.name}", grad)
    graph.output(f"loss {len(graph.outputs)}", loss)


SLICED = {
    "group of 64 x 64 x 32": ("group_norm", (1, 64, 64, 32), {"groups": 1, "silu": True}),
    "odd group": ("group_norm", (1, 67, 83, 6), {"groups": 2, "silu": False}),
    "long rows": ("layer_norm", (3, 16411), {}),
    "long rows, not centred": ("rms_norm", (3, 16412), {}),
}


@BOTH
@pytest.mark.parametrize("name", SLICED)
def test_groups_in_slices(name: str, chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    op, shape, attrs = SLICED[name]
    affine = (shape[-1:],) * (1 if op == "rms_norm" else 2)
    sample = Sample((shape, *affine), {"eps": 1e-5, **attrs}, low=0.2, high=2.0)
    graph, feeds = Graph(), {}
    case = place(graph, op, op, sample, feeds, rng)
    output_gradients(graph, case.loss, case.sources)
    plan = compile_graph(graph, variant(gpu, chosen))
    assert {"moments", "norm_gradient_sums"} <= set(kernel_labels(plan))
    compare(gpu, graph, feeds, chosen, 2e-5)


@BOTH
@pytest.mark.parametrize("name", ["group of 64 x 64 x 32", "long rows"])
def test_a_mean_far_from_zero_costs_no_digits(
    name: str, chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    op, shape, attrs = SLICED[name]
    graph = Graph()
    x = graph.input("x", shape)
    affine = [graph.constant("w", np.ones(shape[-1])), graph.constant("b", np.zeros(shape[-1]))]
    graph.output("y", graph.add(op, [x, *affine], eps=1e-5, **{**attrs}))
    value = (rng.normal(0, 1, shape) + 1000).astype(np.float32)
    # The mean itself is only known to half a unit in the last place of 1000, which is 3e-5.
    compare(gpu, graph, {"x": value}, chosen, 5e-5)


@BOTH
def test_vocabulary_sized_rows(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    rows, classes = 3, 49152
    graph = Graph()
    logits, labels = graph.input("logits", (rows, classes)), graph.input("labels", (rows,), "u32")
    loss = ops.cross_entropy(logits, labels)
    output_gradients(graph, loss, (logits,))
    graph.output("log softmax", ops.log_softmax(logits))
    feeds = {
        "logits": rng.normal(0, 4, (rows, classes)).astype(np.float32),
        "labels": np.array([0, 49151, 31337], np.uint32),
    }
    compare(gpu, graph, feeds, chosen)


@BOTH
@pytest.mark.parametrize("classes", [8, 7])
def test_extreme_logits_stay_finite(classes: int, chosen: str, gpu: Gpu) -> None:
    """Exponents that overflow, rows that are certain and right, certain and wrong, or even."""
    value = np.zeros((5, classes), np.float32)
    value[0, 2], value[1, 2] = 3e4, 3e4
    value[2] = -3e4
    value[3] = np.linspace(-1e30, 1e30, classes)
    value[4, :] = 1e4
    graph = Graph()
    logits, labels = graph.input("logits", value.shape), graph.input("labels", (5,), "u32")
    output_gradients(graph, ops.cross_entropy(logits, labels), (logits,))
    graph.output("log softmax", ops.log_softmax(logits))
    graph.output("softmax", ops.softmax(logits))
    feeds = {"logits": value, "labels": np.array([2, 0, 3, classes - 1, 0], np.uint32)}
    compare(gpu, graph, feeds, chosen)


@BOTH
def test_no_row_counts(chosen: str, gpu: Gpu) -> None:
    graph = Graph()
    logits, labels = graph.input("logits", (4, 5)), graph.input("labels", (4,), "u32")
    loss = ops.cross_entropy(logits, labels, ignore_index=3)
    output_gradients(graph, loss, (logits,))
    feeds = {"logits": np.ones((4, 5), np.float32), "labels": np.array([3, 5, 3, 2**32 - 1])}
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))
    assert all(np.array_equal(value, np.zeros_like(value)) for value in got.values())


def test_more_labels_than_one_dimension_of_workgroups(gpu: Gpu, rng: np.random.Generator) -> None:
    rows = 65535 + 4
    graph = Graph()
    logits, labels = graph.input("logits", (rows, 2)), graph.input("labels", (rows,), "u32")
    output_gradients(graph, ops.cross_entropy(logits, labels), (logits,))
    feeds = {
        "logits": rng.uniform(-3, 3, (rows, 2)).astype(np.float32),
        "labels": rng.integers(3, size=rows, dtype=np.uint32),
    }
    compare(gpu, graph, feeds, "gpu")


@BOTH
def test_a_tied_head_sums_both_gradients(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    vocabulary, width, count = 37, 12, 9
    graph = Graph()
    table = graph.input("table", (vocabulary, width))
    ids, labels = (graph.input(name, (count,), "u32") for name in ("ids", "labels"))
    hidden = ops.gelu(ops.embedding(ids, table))
    loss = ops.cross_entropy(ops.matmul(hidden, table, transpose_b=True), labels)
    output_gradients(graph, loss, (table,))
    feeds = {
        "table": rng.normal(0, 1, (vocabulary, width)).astype(np.float32),
        "ids": np.array([5, 5, 0, 36, 5, 40, 2, 0, 2**32 - 1], np.uint32),
        "labels": rng.integers(vocabulary, size=count, dtype=np.uint32),
    }
    compare(gpu, graph, feeds, chosen)
    (alone,) = interpret(graph, feeds, gradients(loss, [hidden]))
    assert alone.shape == hidden.shape and np.abs(alone).max() > 0


@BOTH
def test_scattering_repeats_bit_for_bit(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    """One row takes a thousand summands, in ascending order whatever the device does."""
    graph = Graph()
    x, ids = graph.input("x", (1000, 5)), graph.input("ids", (1000,), "u32")
    graph.output("y", ops.scatter_add(x, ids, 3))
    value = rng.normal(0, 1, (1000, 5)).astype(np.float32)
    feeds = {"x": value, "ids": np.ones(1000, np.uint32)}
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))["y"]
    want = np.zeros((3, 5), np.float32)
    for row in value:
        want[1] += row
    assert np.array_equal(got, want)


@BOTH
@pytest.mark.parametrize("kind", ["max", "min"])
def test_among_equals_the_first_has_the_gradient(kind: str, chosen: str, gpu: Gpu) -> None:
    """Also on an axis that is cut into slices, where the first is not in the first slice."""
    value = np.zeros((2, 613, 3), np.float32)
    value[:, 5:] = 1.0 if kind == "max" else -1.0
    graph = Graph()
    x = graph.input("x", value.shape)
    y = (ops.reduce_max if kind == "max" else ops.reduce_min)(x, [1])
    (grad,) = gradients(ops.reduce_sum(y, [0, 1]), [x])
    graph.output("dx", grad)
    got = outputs(gpu, graph, {"x": value}, variant(gpu, chosen))["dx"]
    want = np.zeros_like(value)
    want[:, 5] = 1
    assert np.array_equal(got, want)


def test_casts_round_towards_zero_and_stay_in_range(gpu: Gpu) -> None:
    graph = Graph()
    x = graph.input("x", (6,))
    whole = ops.cast(x, "u32")
    graph.output("whole", whole)
    graph.output("back", ops.cast(whole, "f32"))
    value = np.array([-5.5, 0.99, 1.0, 255.75, 3e9, 1e20], np.float32)
    got = outputs(gpu, graph, {"x": value})
    want = [0, 0, 1, 255, 3_000_000_000, 4_294_967_040]
    assert got["whole"].tolist() == want
    assert got["back"].tolist() == want
