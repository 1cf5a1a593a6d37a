"""Convolution, pooling and upsampling with their gradients against PyTorch."""

from collections.abc import Callable

import numpy as np
import pytest
from cases import assert_close
from device_runs import outputs

from engine import ops
from engine.autodiff import gradients
from engine.gpu import Gpu
from engine.graph import Graph, Node

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

Tensors = list["torch.Tensor"]


def channels_first(weight: "torch.Tensor", *kernel: int) -> "torch.Tensor":
    """[out, taps * c] as PyTorch's [out, c, *kernel]."""
    return weight.reshape(weight.shape[0], *kernel, -1).movedim(-1, 1)


def images(apply: Callable[..., "torch.Tensor"]) -> Callable[[Tensors], "torch.Tensor"]:
    """A function of NCHW images as one of NHWC images."""
    return lambda t: apply(t[0].movedim(-1, 1)).movedim(1, -1)


def conv2d(kernel: tuple[int, int], **window: tuple[int, int]) -> tuple[Callable, Callable]:
    return (
        lambda x, w, b: ops.conv2d(x, w, b, kernel, **window),
        lambda t: functional.conv2d(
            t[0].movedim(-1, 1), channels_first(t[1], *kernel), t[2], **window
        ).movedim(1, -1),
    )


def conv1d(kernel: int, **window: int) -> tuple[Callable, Callable]:
    return (
        lambda x, w, b: ops.conv1d(x, w, b, kernel, **window),
        lambda t: functional.conv1d(
            t[0].movedim(-1, 1), channels_first(t[1], kernel), t[2], **window
        ).movedim(1, -1),
    )


def max_pool(kernel: int, **window: int) -> tuple[Callable, Callable]:
    return (
        lambda x: ops.max_pool2d(x, kernel, **window),
        images(lambda x: functional.max_pool2d(x, kernel, **window)),
    )


def avg_pool(kernel: int, **options: int) -> tuple[Callable, Callable]:
    return (
        lambda x: ops.avg_pool2d(x, kernel, **options),
        images(lambda x: functional.avg_pool2d(x, kernel, **options)),
    )


def interpolate(mode: str, factor: int) -> tuple[Callable, Callable]:
    ours = ops.upsample_nearest if mode == "nearest" else ops.upsample_bilinear
    aligned = {} if mode == "nearest" else {"align_corners": False}
    return (
        lambda x: ours(x, factor),
        images(
            lambda x: functional.interpolate(x, scale_factor=factor, mode=mode, **aligned),
        ),
    )


CASES = {
    "conv2d 3x3": (((2, 7, 5, 3), (4, 27), (4,)), *conv2d((3, 3), padding=(1, 1))),
    "conv2d 3x3 /2": (
        ((2, 9, 8, 4), (8, 36), (8,)),
        *conv2d((3, 3), stride=(2, 2), padding=(1, 1)),
    ),
    "conv2d 7x7 /2": (
        ((1, 15, 13, 3), (5, 147), (5,)),
        *conv2d((7, 7), stride=(2, 2), padding=(3, 3)),
    ),
    "conv2d 1x1": (((2, 5, 3, 6), (7, 6), (7,)), *conv2d((1, 1))),
    "conv2d 1x1 /2": (((2, 5, 3, 6), (7, 6), (7,)), *conv2d((1, 1), stride=(2, 2))),
    "conv2d 3x2 /(1, 3)": (
        ((1, 6, 11, 2), (3, 12), (3,)),
        *conv2d((3, 2), stride=(1, 3), padding=(2, 1)),
    ),
    "conv1d 3": (((2, 11, 5), (4, 15), (4,)), *conv1d(3, padding=1)),
    "conv1d 3 /2": (((1, 12, 4), (8, 12), (8,)), *conv1d(3, stride=2, padding=1)),
    "max_pool 3 /2": (((2, 9, 7, 4),), *max_pool(3, stride=2, padding=1)),
    "max_pool 2": (((1, 6, 5, 3),), *max_pool(2)),
    "avg_pool 3 /2": (((2, 9, 7, 4),), *avg_pool(3, stride=2, padding=1)),
    "avg_pool 3 /2 inside": (
        ((2, 9, 7, 3),),
        *avg_pool(3, stride=2, padding=1, count_include_pad=False),
    ),
    "global_avg_pool": (
        ((2, 5, 7, 3),),
        ops.global_avg_pool,
        lambda t: functional.adaptive_avg_pool2d(t[0].movedim(-1, 1), 1).flatten(1),
    ),
    "nearest 2": (((2, 3, 5, 4),), *interpolate("nearest", 2)),
    "nearest 3": (((1, 3, 2, 3),), *interpolate("nearest", 3)),
    "bilinear 2": (((2, 3, 5, 4),), *interpolate("bilinear", 2)),
    "bilinear 5": (((1, 4, 1, 3),), *interpolate("bilinear", 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, gpu: Gpu, rng: np.random.Generator) -> None:
    shapes, ours, theirs = CASES[case]
    values = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    graph = Graph()
    sources: list[Node] = [graph.input(f"x{k}", shape) for k, shape in enumerate(shapes)]
    y = ours(*sources)
    upstream = rng.uniform(-1, 1, y.shape).astype(np.float32)
    graph.output("y", y)
    for k, grad in enumerate(gradients(y, sources, graph.constant("upstream", upstream))):
        graph.output(f"d{k}", grad)
    got = outputs(gpu, graph, {s.name: v for s, v in zip(sources, values, strict=True)})

    tensors = [torch.from_numpy(value).double().requires_grad_() for value in values]
    want = theirs(tensors)
    want.backward(torch.tensor(upstream).double())
    assert_close(got["y"], want.detach().numpy(), 2e-6, case)
    for k, tensor in enumerate(tensors):
        assert_close(got[f"d{k}"], tensor.grad.numpy(), 2e-6, f"{case} gradient {k}")


def test_ties_go_where_torch_sends_them(gpu: Gpu, rng: np.random.Generator) -> None:
    value = rng.integers(0, 2, (2, 9, 8, 4)).astype(np.float32)
    graph = Graph()
    x = graph.input("x", value.shape)
    y = ops.max_pool2d(x, 3, stride=2, padding=1)
    upstream = rng.uniform(0.5, 1, y.shape).astype(np.float32)
    graph.output("dx", gradients(y, [x], graph.constant("upstream", upstream))[0])
    tensor = torch.from_numpy(value).requires_grad_()
    pooled = functional.max_pool2d(tensor.movedim(-1, 1), 3, stride=2, padding=1)
    pooled.movedim(1, -1).backward(torch.tensor(upstream))
    assert_close(outputs(gpu, graph, {"x": value})["dx"], tensor.grad.numpy(), 1e-6)
