"""Values and gradients of single ops against PyTorch in float64.

The interpreter must agree to rounding of float64, the device to rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cases import Feeds, assert_close, signed
from device_runs import outputs

from engine import ops
from engine.autodiff import gradients
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.op import definitions

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.reference


@dataclass(frozen=True)
class Case:
    """The same function built of ops and of torch calls. `integers`: operand -> its values."""

    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Node]
    torch: Callable[..., Any]
    low: float = -2.0
    high: float = 2.0
    integers: dict[int, Sequence[int]] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()


def _unary(name: str, function: Callable[..., Any], low: float = -3.0, high: float = 3.0) -> Case:
    return Case(((5, 7),), lambda x: ops.unary(name, x), function, low, high)


def _matmul(ta: bool, tb: bool, *lead: int) -> Case:
    a, b = ((3, 5) if ta else (5, 3)), ((7, 3) if tb else (3, 7))

    def product(x: Any, y: Any) -> Any:
        return (x.mT if ta else x) @ (y.mT if tb else y)

    def build(x: Node, y: Node) -> Node:
        return ops.matmul(x, y, transpose_a=ta, transpose_b=tb)

    return Case(((*lead, *a), (*lead, *b)), build, product)


def _group_norm(silu: bool) -> Case:
    def reference(x: Any, w: Any, b: Any) -> Any:
        y = F.group_norm(x.permute(0, 3, 1, 2), 3, w, b, eps=1e-5).permute(0, 2, 3, 1)
        return F.silu(y) if silu else y

    def build(x: Node, w: Node, b: Node) -> Node:
        return ops.group_norm(x, w, b, 3, eps=1e-5, silu=silu)

    return Case(((2, 5, 3, 12), (12,), (12,)), build, reference)


LABELS = (0, 6, 2, 2, 4)
IGNORED = 2
CROSS_ENTROPY = {
    "cross_entropy": Case(
        ((5, 7), (5,)),
        ops.cross_entropy,
        lambda x, t: F.cross_entropy(x, t),
        integers={1: LABELS},
    ),
    "cross_entropy, ignoring": Case(
        ((5, 7), (5,)),
        lambda x, t: ops.cross_entropy(x, t, ignore_index=IGNORED),
        lambda x, t: F.cross_entropy(x, t, ignore_index=IGNORED),
        integers={1: LABELS},
    ),
    "cross_entropy, weighted": Case(
        ((5, 7), (5,), (7,)),
        lambda x, t, w: ops.cross_entropy(x, t, w, ignore_index=IGNORED),
        lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=IGNORED),
        low=0.1,
        integers={1: LABELS},
        fixed=(2,),
    ),
    "soft_cross_entropy": Case(
        ((5, 7), (5, 7)), ops.soft_cross_entropy, lambda x, t: F.cross_entropy(x, t), 0.1, 2.0
    ),
}

CASES: dict[str, Case] = {
    "exp": _unary("exp", lambda x: x.exp()),
    "log": _unary("log", lambda x: x.log(), 0.2, 4),
    "sqrt": _unary("sqrt", lambda x: x.sqrt(), 0.2, 4),
    "rsqrt": _unary("rsqrt", lambda x: x.rsqrt(), 0.2, 4),
    "recip": _unary("recip", lambda x: x.reciprocal(), 0.2, 4),
    "abs": _unary("abs", lambda x: x.abs()),
    "square": _unary("square", lambda x: x.square()),
    "sin": _unary("sin", lambda x: x.sin()),
    "cos": _unary("cos", lambda x: x.cos()),
    "tanh": _unary("tanh", lambda x: x.tanh()),
    "relu": _unary("relu", F.relu),
    "sigmoid": _unary("sigmoid", lambda x: x.sigmoid()),
    "silu": _unary("silu", F.silu),
    "softplus": _unary("softplus", F.softplus),
    "gelu": _unary("gelu", F.gelu),
    "gelu_tanh": _unary("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    "add": Case(((3, 4, 5), (4, 1)), ops.add, lambda a, b: a + b),
    "sub": Case(((3, 1), (1, 5)), ops.sub, lambda a, b: a - b),
    "mul": Case(((6, 4), (4,)), ops.mul, lambda a, b: a * b),
    "div": Case(((6, 4), (6, 1)), ops.div, lambda a, b: a / b, 0.5),
    "maximum": Case(((6, 4), (4,)), ops.maximum, torch.maximum),
    "minimum": Case(((6, 4), (6, 4)), ops.minimum, torch.minimum),
    "greater": Case(
        ((6, 4), (4,)), lambda a, b: ops.mul(a, ops.greater(a, b)), lambda a, b: a * (a > b) + 0 * b
    ),
    "affine": Case(((5, 7),), lambda x: ops.affine(x, -1.5, 0.5), lambda x: -1.5 * x + 0.5),
    "expand": Case(((5, 1, 3),), lambda x: ops.expand(x, (5, 4, 3)), lambda x: x.expand(5, 4, 3)),
    "matmul": _matmul(False, False),
    "matmul, transposed a": _matmul(True, False),
    "matmul, transposed b": _matmul(False, True, 4),
    "matmul, both transposed": _matmul(True, True, 2),
    "linear": Case(((2, 5, 3), (7, 3), (7,)), ops.linear, F.linear),
    "layer_norm": Case(
        ((2, 5, 11), (11,), (11,)),
        lambda x, w, b: ops.layer_norm(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x, (11,), w, b, 1e-5),
    ),
    "layer_norm, plain": Case(
        ((5, 12),),
        lambda x: ops.layer_norm(x, eps=1e-3),
        lambda x: F.layer_norm(x, (12,), eps=1e-3),
    ),
    "rms_norm": Case(
        ((3, 5, 12), (12,)),
        lambda x, w: ops.rms_norm(x, w, eps=1e-5),
        lambda x, w: F.rms_norm(x, (12,), w, 1e-5),
    ),
    "group_norm": _group_norm(False),
    "group_norm_silu": _group_norm(True),
    "softmax": Case(((2, 5, 7),), ops.softmax, lambda x: x.softmax(-1)),
    "log_softmax": Case(((5, 8),), ops.log_softmax, lambda x: x.log_softmax(-1)),
    **CROSS_ENTROPY,
    "mse": Case(((5, 7), (5, 7)), ops.mse, F.mse_loss),
    "l1": Case(((5, 7), (5, 7)), ops.l1, F.l1_loss),
    "mean_square": Case(((5, 7),), ops.mean_square, lambda x: x.square().mean()),
    "embedding": Case(((6,), (5, 3)), ops.embedding, F.embedding, integers={0: (4, 0, 4, 2, 4, 2)}),
    "scatter_add": Case(
        ((6, 3), (6,)),
        lambda x, ids: ops.scatter_add(x, ids, 5),
        lambda x, ids: torch.zeros(5, 3, dtype=torch.float64).index_add(0, ids, x),
        integers={1: (4, 0, 4, 2, 4, 2)},
    ),
    "swiglu": Case(((5, 7), (5, 7)), ops.swiglu, lambda gate, up: F.silu(gate) * up),
    "swiglu_concat": Case(((5, 14),), ops.swiglu_concat, lambda x: F.silu(x[:, :7]) * x[:, 7:]),
    "sum": Case(((3, 4, 5),), lambda x: ops.reduce_sum(x, [0, 2]), lambda x: x.sum((0, 2))),
    "mean": Case(((3, 4, 5),), lambda x: ops.reduce_mean(x, [1]), lambda x: x.mean(1)),
    "variance": Case(
        ((3, 4, 5),),
        lambda x: ops.reduce_variance(x, [1, 2]),
        lambda x: x.var((1, 2), correction=0),
    ),
    "max": Case(((3, 4, 5),), lambda x: ops.reduce_max(x, [1]), lambda x: x.amax(1)),
    "min": Case(((3, 4, 5),), lambda x: ops.reduce_min(x, [2]), lambda x: x.amin(2)),
    "reshape": Case(((6, 4),), lambda x: ops.reshape(x, (3, 8)), lambda x: x.reshape(3, 8)),
    "permute": Case(
        ((3, 4, 5),), lambda x: ops.permute(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1)
    ),
    "slice": Case(((7, 4),), lambda x: ops.take(x, 0, 2, 5), lambda x: x[2:5]),
    "pad": Case(((3, 4),), lambda x: ops.pad(x, 1, 2, 1), lambda x: F.pad(x, (2, 1))),
    "concat": Case(
        ((3, 2), (3, 4), (3, 1)),
        lambda *xs: ops.concatenate(xs, 1),
        lambda *xs: torch.cat(xs, 1),
    ),
    "split": Case(
        ((3, 8),),
        lambda x: ops.mul(*(ops.split(x, 1, [3, 2, 3])[k] for k in (2, 0))),
        lambda x: x[:, 5:] * x[:, :3],
    ),
    "copy": Case(((3, 8),), ops.copy, lambda x: x.clone()),
    "stop_gradient": Case(
        ((3, 8),), lambda x: ops.mul(x, ops.stop_gradient(x)), lambda x: x * x.detach()
    ),
    "argmax": Case(
        ((3, 8),),
        lambda x: ops.add(x, ops.reshape(ops.cast(ops.argmax(x, 1), "f32"), (3, 1))),
        lambda x: x + x.argmax(1, keepdim=True),
    ),
    "argmin": Case(
        ((3, 8),),
        lambda x: ops.add(x, ops.cast(ops.argmin(x, 0), "f32")),
        lambda x: x + x.argmin(0, keepdim=True),
    ),
}

FAMILIES = (
    "unary",
    "binary",
    "elementwise",
    "norm",
    "norm_grad",
    "softmax",
    "loss",
    "embedding",
    "swiglu",
    "reduce",
    "shape",
    "cast",
    "matmul",
)
"""Modules of `engine.ops` whose every op must occur in a case."""


def place(
    graph: Graph, name: str, feeds: Feeds, rng: np.random.Generator
) -> tuple[list[Node], list[np.ndarray]]:
    """Append a case and its gradients; returns the result with them, and what torch finds."""
    case = CASES[name]
    nodes, tensors, sources, leaves = [], [], [], []
    for k, shape in enumerate(case.shapes):
        label = f"{name}.x{k}"
        if k in case.integers:
            value = np.array(case.integers[k], np.uint32)
            tensors.append(torch.from_numpy(value.astype(np.int64)))
        else:
            value = rng.uniform(case.low, case.high, shape).astype(np.float32)
            tensors.append(torch.from_numpy(value.astype(np.float64)))
        nodes.append(graph.input(label, shape, "u32" if k in case.integers else "f32"))
        feeds[label] = value
        if k not in case.integers and k not in case.fixed:
            sources.append(nodes[-1])
            leaves.append(tensors[-1].requires_grad_())
    y = case.build(*nodes)
    upstream = signed(rng, y.shape).astype(np.float32)
    seed = graph.constant(f"{name}.upstream", upstream)
    want = case.torch(*tensors)
    want.reshape(y.shape).backward(torch.from_numpy(upstream.astype(np.float64)))
    expected = [want.detach().numpy().reshape(y.shape), *(leaf.grad.numpy() for leaf in leaves)]
    return [y, *gradients(y, sources, seed)], expected


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    nodes, expected = place(graph, name, feeds, rng)
    for k, (got, want) in enumerate(zip(interpret(graph, feeds, nodes), expected, strict=True)):
        assert_close(got, want, 1e-12, f"{name} {k}")


@pytest.mark.gpu
def test_on_the_device(gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    wanted = {}
    for name in CASES:
        nodes, expected = place(graph, name, feeds, rng)
        for k, (node, want) in enumerate(zip(nodes, expected, strict=True)):
            # A gradient may be a view of an operand or of another output.
            graph.output(f"{name} {k}", ops.copy(node))
            wanted[f"{name} {k}"] = want
    got = outputs(gpu, graph, feeds)
    for name, want in wanted.items():
        assert_close(got[name], want, 1e-5, name)


def test_every_op_occurs() -> None:
    graph, rng = Graph(), np.random.default_rng(0)
    for name in CASES:
        place(graph, name, {}, rng)
    used = {node.op for node in graph.nodes}
    modules = {f"engine.ops.{family}" for family in FAMILIES}
    own = {name for name, op in definitions().items() if type(op).__module__ in modules}
    assert own <= used, own - used
