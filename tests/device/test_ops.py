"""Every op and every sample on the device: values, and gradients in the middle of a graph."""

import numpy as np
import pytest
from cases import Feeds, assert_close, differentiable_ops, operands, place, values_of_ops
from device_runs import VARIANTS, outputs, variant

from engine import ops
from engine.autodiff import gradients
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.op import Sample, definition

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-5

# WGSL promises an absolute error of 2^-11 only, and GPUs use it.
BUILT_INS = {"sin": 5e-4, "cos": 5e-4}

# A loss sums terms of both signs; its error is relative to what cancelled.
LOSS = 1e-4


def chosen_samples(op: str, *, all_of_them: bool) -> list[Sample]:
    """A third of the matrix products where kernels take long to compile on a CPU device.

    Products have one kernel per shape; test_matmul.py covers every layout of the GPU kernels.
    """
    samples = list(definition(op).samples())
    return samples if all_of_them or op != "matmul" else samples[::-3]


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, chosen: str, op: str, **options: bool) -> None:
    """All outputs against the float64 interpreter."""
    usual = BUILT_INS.get(op, TOLERANCE)
    got = outputs(gpu, graph, feeds, variant(gpu, chosen), **options)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for (name, node), value in zip(graph.outputs.items(), want, strict=True):
        tolerance = max(LOSS, usual) if name.startswith("loss") else usual
        assert_close(got[name], value, tolerance, f"{name} {node.type}")


@pytest.mark.parametrize("chosen", VARIANTS)
@pytest.mark.parametrize("op", values_of_ops())
def test_values_of(op: str, chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    for number, sample in enumerate(chosen_samples(op, all_of_them=chosen == "cpu")):
        y = graph.add(op, operands(graph, f"sample {number}", sample, feeds, rng), **sample.attrs)
        graph.output(f"sample {number}", y)
        for k in range(len(definition(op).extras([v.type for v in y.inputs], y.attrs))):
            graph.output(f"sample {number} extra {k}", ops.extra(y, k))
    compare(gpu, graph, feeds, chosen, op, optimize=False)


@pytest.mark.parametrize("op", differentiable_ops())
def test_gradients_of(op: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    for number, sample in enumerate(chosen_samples(op, all_of_them=False)):
        case = place(graph, f"sample {number}", op, sample, feeds, rng)
        for source, grad in zip(case.sources, gradients(case.loss, case.sources), strict=True):
            graph.output(f"d {source.name}", grad)
        graph.output(f"loss {number}", case.loss)
    # Gradient kernels are ops of their own, with values tested in every variant.
    compare(gpu, graph, feeds, "cpu", op)


LARGE = {
    "exp": (-80.0, 80.0),
    "tanh": (-200.0, 200.0),
    "sigmoid": (-200.0, 200.0),
    "silu": (-200.0, 200.0),
    "gelu": (-200.0, 200.0),
    "softmax": (-3000.0, 3000.0),
}


@pytest.mark.parametrize("op", LARGE)
def test_large_arguments_saturate_instead_of_overflowing(op: str, gpu: Gpu) -> None:
    low, high = LARGE[op]
    graph = Graph()
    x = graph.input("x", (2, 80))
    value = np.linspace(low, high, 160, dtype=np.float32).reshape(2, 80)
    y = graph.add(op, [x])
    upstream = graph.constant("upstream", np.full((2, 80), 0.5))
    graph.output("y", y)
    graph.output("dx", gradients(y, [x], upstream)[0])
    got = outputs(gpu, graph, {"x": value})
    want = interpret(graph, {"x": value}, [*graph.outputs.values()])
    for name, wanted in zip(graph.outputs, want, strict=True):
        # exp and its argument: an error of 1e-7 in x = 80 is one of 1e-5 in the result.
        assert_close(got[name], wanted, 2e-5, name)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_normalisation_survives_a_large_offset(
    chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    """Mean far from zero: a one-pass variance would lose every digit."""
    graph = Graph()
    x = graph.input("x", (5, 300))
    graph.output("y", ops.layer_norm(x, eps=1e-5))
    value = (rng.normal(0, 1, (5, 300)) + 1000).astype(np.float32)
    got = outputs(gpu, graph, {"x": value}, variant(gpu, chosen))["y"]
    (want,) = interpret(graph, {"x": value}, [graph.outputs["y"]])
    # The mean itself is only known to half a unit in the last place of 1000, which is 3e-5.
    assert_close(got, want, 1e-4)


def test_constant_rows_normalise_to_zero(gpu: Gpu) -> None:
    graph = Graph()
    graph.output("y", ops.layer_norm(graph.input("x", (3, 70)), eps=1e-5))
    value = np.repeat(np.array([[0.0], [1.0], [-4.0]], np.float32), 70, axis=1)
    for chosen in VARIANTS:
        got = outputs(gpu, graph, {"x": value}, variant(gpu, chosen))["y"]
        assert np.abs(got).max() < 1e-3


BEYOND = 65535 * 64 + 6
"""Elements that need a second row of workgroups."""


@pytest.mark.parametrize("extra", [0, 1], ids=["vectors", "scalars"])
def test_grids_beyond_one_dimension(extra: int, gpu: Gpu) -> None:
    size = (BEYOND + 2) * 4 if not extra else BEYOND + 1
    graph = Graph()
    graph.output("y", ops.affine(graph.input("x", (size,)), 2.0, 1.0))
    value = np.arange(size, dtype=np.float32) % 1021
    got = outputs(gpu, graph, {"x": value})["y"]
    assert np.array_equal(got, value * 2 + 1)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_more_rows_than_one_dimension_of_workgroups(chosen: str, gpu: Gpu) -> None:
    rows = 65535 + 4
    graph = Graph()
    graph.output("y", ops.softmax(graph.input("x", (rows, 2))))
    value = np.stack([np.zeros(rows), np.linspace(-4, 4, rows)], axis=1).astype(np.float32)
    got = outputs(gpu, graph, {"x": value}, variant(gpu, chosen))["y"]
    (want,) = interpret(graph, {"x": value}, [graph.outputs["y"]])
    assert_close(got, want, 1e-6)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_long_rows(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    """Rows longer than any number of lanes, of an extent that none divides."""
    shape = (3, 2311)
    graph, feeds = Graph(), {}
    for op, attrs in (("softmax", {}), ("layer_norm", {"eps": 1e-5})):
        case = place(graph, op, op, Sample((shape,), attrs), feeds, rng)
        graph.output(f"d {op}", gradients(case.loss, case.sources)[0])
        graph.output(f"loss {op}", case.loss)
    compare(gpu, graph, feeds, chosen, "")
