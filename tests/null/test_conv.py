"""Convolution, pooling and upsampling as graphs: shapes, choices of op and refusals."""

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.autodiff import gradients
from engine.compile import compile_graph
from engine.errors import GraphError
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.kernels.conv import Phases
from engine.ops.window import window_attrs, window_of
from engine.specialize import DeviceFacts


def image(*shape: int) -> Node:
    return Graph().input("x", shape)


def convolve(x: Node, out: int, kernel: tuple[int, int], **window: int) -> Node:
    taps = kernel[0] * kernel[1] * x.shape[3]
    return ops.conv2d(x, x.graph.input("w", (out, taps)), None, kernel, **window)


def test_shapes() -> None:
    assert convolve(image(2, 224, 224, 3), 64, (7, 7), stride=2, padding=3).shape[1:] == (
        112,
        112,
        64,
    )
    assert convolve(image(1, 5, 9, 2), 3, (3, 1), stride=2).shape == (1, 2, 5, 3)
    assert ops.max_pool2d(image(1, 112, 112, 4), 3, stride=2, padding=1).shape == (1, 56, 56, 4)
    assert ops.avg_pool2d(image(1, 7, 7, 5), 2).shape == (1, 3, 3, 5)
    assert ops.global_avg_pool(image(4, 7, 7, 5)).shape == (4, 5)
    assert ops.upsample_nearest(image(1, 3, 5, 2), 2).shape == (1, 6, 10, 2)
    assert ops.upsample_bilinear(image(1, 3, 5, 2), (1, 3)).shape == (1, 3, 15, 2)


def test_a_1x1_convolution_is_a_matrix_product() -> None:
    x = image(2, 3, 4, 5)
    y = convolve(x, 7, (1, 1))
    assert y.shape == (2, 3, 4, 7)
    used = {node.op for node in x.graph.nodes}
    assert "matmul" in used and "conv2d" not in used
    assert convolve(image(2, 3, 4, 5), 7, (1, 1), stride=2).op == "conv2d"


def test_nothing_is_unfolded() -> None:
    """Transients of a convolution and its gradients: no larger than what it reads or writes."""
    x = image(1, 16, 16, 8)
    y = convolve(x, 8, (3, 3), padding=1)
    loss = ops.reduce_sum(ops.square(y), range(4))
    for name, grad in zip("xw", gradients(loss, x.graph.nodes[:2]), strict=True):
        x.graph.output(f"d{name}", grad)
    for is_cpu in (True, False):
        plan = compile_graph(x.graph, DeviceFacts(is_cpu=is_cpu))
        sizes = [b.type.size for b in plan.buffers if b.kind == "transient" and not b.name]
        # Split-K writes several copies of the weight gradient.
        assert max(sizes) <= max(16 * 16 * 8, 16 * 8 * 72)


def test_phases_of_an_input_gradient_sum_only_their_own_taps() -> None:
    three = Phases(window_of((1, 8, 8, 4), window_attrs(3, 2, 1)), 4)
    assert (three.count, three.grid, three.window, three.uneven) == (4, (4, 4), (2, 2), True)
    one = Phases(window_of((1, 8, 8, 4), window_attrs(3, 1, 1)), 4)
    assert (one.count, one.grid, one.window, one.uneven) == (1, (8, 8), (3, 3), False)


def test_transposed_convolution_is_the_adjoint() -> None:
    rng = np.random.default_rng(3)
    x = image(1, 5, 7, 2)
    y = convolve(x, 3, (3, 2), stride=2, padding=1)
    g = x.graph.input("g", y.shape)
    (back,) = gradients(y, [x], g)
    feeds = {n: rng.normal(size=x.graph.source(n).shape) for n in ("x", "w", "g")}
    forward, adjoint = interpret(x.graph, feeds, [y, back])
    assert np.isclose((forward * feeds["g"]).sum(), (adjoint * feeds["x"]).sum(), rtol=1e-12)


REFUSED: dict[str, tuple[Callable[[], Node], list[str]]] = {
    "kernel": (lambda: convolve(image(1, 4, 4, 3), 2, (5, 5)), ["conv2d", "[1, 4, 4, 3]"]),
    "stride": (lambda: convolve(image(1, 4, 4, 3), 2, (3, 3), stride=0), ["conv2d", "stride"]),
    "padding": (lambda: convolve(image(1, 4, 4, 3), 2, (3, 3), padding=-1), ["conv2d", "padding"]),
    "rank": (lambda: ops.max_pool2d(image(4, 4, 3), 2), ["max_pool2d", "[4, 4, 3]"]),
    "pool padding": (
        lambda: ops.avg_pool2d(image(1, 4, 4, 3), 2, padding=2),
        ["avg_pool2d", "half of the kernel"],
    ),
    "factor": (lambda: ops.upsample_bilinear(image(1, 4, 4, 3), 0), ["upsample_bilinear", "0"]),
    "nearest factor": (
        lambda: ops.upsample_nearest(image(1, 4, 4, 3), 0),
        ["upsample_nearest", "0"],
    ),
    "divisor": (
        lambda: (x := image(1, 4, 4, 3)).graph.add(
            "avg_pool2d", [x], **window_attrs(2, 2, 0), divisor="none"
        ),
        ["avg_pool2d", "'none'", "kernel, inside, one"],
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_faults_are_named_when_the_graph_is_built(fault: str) -> None:
    build, parts = REFUSED[fault]
    with pytest.raises(GraphError) as caught:
        build()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_weights_must_fit_the_window() -> None:
    x = image(1, 4, 4, 3)
    weight = x.graph.input("w", (2, 26))
    with pytest.raises(GraphError, match=r"conv2d: weight must be f32\[out, 27\].*f32\[2, 26\]"):
        ops.conv2d(x, weight, None, 3)
    with pytest.raises(GraphError, match=r"conv2d: weight must be f32\[out, 3\]"):
        ops.conv2d(x, weight, None, 1)


def test_ranks_are_checked_before_shortcuts() -> None:
    x = image(4, 4, 3)
    weight = x.graph.input("w", (2, 3))
    with pytest.raises(GraphError, match=r"conv2d.*f32\[4, 4, 3\]"):
        ops.conv2d(x, weight, None, 1)
    with pytest.raises(GraphError, match=r"conv1d.*f32\[1, 4, 4, 3\]"):
        ops.conv1d(image(1, 4, 4, 3), weight, None, 1)
    with pytest.raises(GraphError, match=r"global_avg_pool.*f32\[4, 4, 3\]"):
        ops.global_avg_pool(x)
