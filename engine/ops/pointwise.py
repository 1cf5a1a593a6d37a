"""Elementwise operations with NumPy broadcasting: one table row per function.

A unary row gives the function and its derivative, each as WGSL and as NumPy; the derivative
may use the argument x and the result y. WGSL templates work for f32 and vec4<f32> alike ({T}).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import GraphError
from engine.graph import Node, TensorType
from engine.kernels.pointwise import Step, pointwise
from engine.kernels.wgsl import f32
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, add_definition, definition, register, require

SHAPES = ((1,), (7,), (3, 5), (2, 3, 8), (67, 4))


class Pointwise(Op):
    """An op whose result element depends only on the operands' (broadcast) elements."""

    arity: int

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        """Expression over `args`, each of WGSL type `kind`."""
        raise NotImplementedError

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == self.arity, self.name, f"takes {self.arity} operands", *inputs)
        require(all(t.dtype == "f32" for t in inputs), self.name, "operands must be f32", *inputs)
        try:
            return TensorType(np.broadcast_shapes(*(t.shape for t in inputs)))
        except ValueError:
            shapes = " and ".join(map(str, inputs))
            raise GraphError(f"{self.name}: shapes do not broadcast, got {shapes}") from None

    def lower(self, node: Node, to: Lowering) -> None:
        step = Step(
            lambda kind, *args: self.wgsl(node.attrs, kind, *args), tuple(range(len(node.inputs)))
        )
        shapes = [value.shape for value in node.inputs]
        to.dispatch(pointwise(self.name, [step], node.shape, shapes), node.inputs, node)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@dataclass(frozen=True)
class UnaryRow:
    """One unary function; see the module docstring."""

    name: str
    wgsl: str
    numpy: Callable[[Array], Array]
    wgsl_derivative: str
    numpy_derivative: Callable[[Array, Array], Array]
    low: float = -3.0
    high: float = 3.0


SIGMOID = "({T}(1.0) / ({T}(1.0) + exp(-{x})))"
CDF = "({T}(0.5) * ({T}(1.0) + {erf}({x} * {T}(0.7071067811865476))))"
PDF = "({T}(0.3989422804014327) * exp({T}(-0.5) * {x} * {x}))"

UNARY = (
    UnaryRow("exp", "exp({x})", np.exp, "{y}", lambda x, y: y),
    UnaryRow("log", "log({x})", np.log, "({T}(1.0) / {x})", lambda x, y: 1 / x, 0.1, 4),
    UnaryRow("sqrt", "sqrt({x})", np.sqrt, "({T}(0.5) / {y})", lambda x, y: 0.5 / y, 0.1, 4),
    UnaryRow("abs", "abs({x})", np.abs, "sign({x})", lambda x, y: np.sign(x), 0.1, 3),
    UnaryRow("square", "({x} * {x})", np.square, "({T}(2.0) * {x})", lambda x, y: 2 * x),
    UnaryRow(
        "relu",
        "max({x}, {T}(0.0))",
        lambda x: np.maximum(x, 0),
        "select({T}(0.0), {T}(1.0), {x} > {T}(0.0))",
        lambda x, y: (x > 0) * 1.0,
    ),
    UnaryRow("sigmoid", SIGMOID, _sigmoid, "({y} * ({T}(1.0) - {y}))", lambda x, y: y * (1 - y)),
    UnaryRow("tanh", "tanh({x})", np.tanh, "({T}(1.0) - {y} * {y})", lambda x, y: 1 - y * y),
    UnaryRow(
        "silu",
        "({x} * " + SIGMOID + ")",
        lambda x: x * _sigmoid(x),
        "(" + SIGMOID + " + {y} * ({T}(1.0) - " + SIGMOID + "))",
        lambda x, y: _sigmoid(x) + y * (1 - _sigmoid(x)),
    ),
    UnaryRow(
        "gelu",
        "({x} * " + CDF + ")",
        lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        "(" + CDF + " + {x} * " + PDF + ")",
        lambda x, y: (
            0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        ),
    ),
)


def _format(template: str, kind: str, **values: str) -> str:
    erf = "erf_v4" if kind == "vec4<f32>" else "erf_f1"
    return template.format(T=kind, erf=erf, **values)


class Unary(Pointwise):
    """y = f(x)."""

    arity = 1

    def __init__(self, row: UnaryRow) -> None:
        self.name, self.row = row.name, row

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.row.numpy(inputs[0])

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return _format(self.row.wgsl, kind, x=args[0])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        x = node.inputs[0]
        return [node.graph.add(f"{self.name}_grad", [x, node, upstream])]

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,), low=self.row.low, high=self.row.high)


class UnaryGrad(Pointwise):
    """upstream * f'(x), from x, y = f(x) and upstream; not differentiable again."""

    arity = 3

    def __init__(self, row: UnaryRow) -> None:
        self.name, self.row = f"{row.name}_grad", row

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, y, upstream = inputs
        return upstream * self.row.numpy_derivative(x, y)

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        x, y, upstream = args
        return f"{upstream} * " + _format(self.row.wgsl_derivative, kind, x=x, y=y)

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,) * 3, low=max(self.row.low, 0.1), high=self.row.high)

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len({t.shape for t in inputs}) == 1, self.name, "shapes must be equal", *inputs)
        return super().infer(inputs, attrs)


def _unbroadcast(gradient: Node, like: Node) -> Node:
    """Sum `gradient` over the axes along which `like` was broadcast."""
    if gradient.shape == like.shape:
        return gradient
    from engine.ops.reduce import reduce_sum
    from engine.ops.shape import reshape

    lead = len(gradient.shape) - len(like.shape)
    axes = [
        axis
        for axis, extent in enumerate(gradient.shape)
        if axis < lead or (like.shape[axis - lead] == 1 and extent != 1)
    ]
    return reshape(reduce_sum(gradient, axes), like.shape)


@dataclass(frozen=True)
class BinaryRow:
    """One binary function; `gradient(a, b, y, upstream)` builds both (unreduced) gradients."""

    name: str
    wgsl: str
    numpy: Callable[[Array, Array], Array]
    gradient: Callable[[Node, Node, Node, Node], tuple[Node | None, Node | None]]


BINARY = (
    BinaryRow("add", "({a} + {b})", np.add, lambda a, b, y, g: (g, g)),
    BinaryRow("sub", "({a} - {b})", np.subtract, lambda a, b, y, g: (g, affine(g, -1.0))),
    BinaryRow("mul", "({a} * {b})", np.multiply, lambda a, b, y, g: (mul(g, b), mul(g, a))),
    BinaryRow(
        "div",
        "({a} / {b})",
        np.divide,
        lambda a, b, y, g: (div(g, b), affine(div(mul(g, y), b), -1.0)),
    ),
)


class Binary(Pointwise):
    """y = f(a, b) with broadcasting."""

    arity = 2

    def __init__(self, row: BinaryRow) -> None:
        self.name, self.row = row.name, row

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.row.numpy(inputs[0], inputs[1])

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return self.row.wgsl.format(a=args[0], b=args[1])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        a, b = node.inputs
        pair = self.row.gradient(a, b, node, upstream)
        return [
            _unbroadcast(grad, operand) if grad is not None else None
            for grad, operand in zip(pair, (a, b), strict=True)
        ]

    def samples(self) -> Iterator[Sample]:
        pairs = [(s, s) for s in SHAPES]
        pairs += [((5, 7), (7,)), ((5, 8), (8,)), ((3, 4, 5), (3, 1, 5)), ((6, 4), (1,))]
        pairs += [((2, 3, 8), (3, 1)), ((1, 4), (5, 4)), ((5, 1), (1, 3))]
        for pair in pairs:
            yield Sample(pair, low=0.5, high=2.0)


@register
class Affine(Pointwise):
    """y = scale * x + shift, with float attributes."""

    name = "affine"
    arity = 1

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        finite = all(math.isfinite(attrs.get(key, math.nan)) for key in ("scale", "shift"))
        require(finite, self.name, "needs finite scale and shift", *inputs)
        return super().infer(inputs, attrs)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return attrs["scale"] * inputs[0] + attrs["shift"]

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return f"({kind}({f32(attrs['scale'])}) * {args[0]} + {kind}({f32(attrs['shift'])}))"

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [affine(upstream, node.attrs["scale"])]

    def samples(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield Sample((shape,), {"scale": -1.5, "shift": 0.25})


@register
class Expand(Pointwise):
    """Repeat along axes of extent 1 until the shape is `shape`."""

    name = "expand"
    arity = 1

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        own, shape = inputs[0].shape, tuple(attrs["shape"])
        good = len(own) == len(shape)
        good = good and all(n >= 1 and m in (1, n) for m, n in zip(own, shape, strict=True))
        require(good, self.name, f"cannot give {TensorType(shape)}", *inputs)
        return TensorType(shape)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return np.broadcast_to(inputs[0], attrs["shape"])

    def wgsl(self, attrs: Attrs, kind: str, *args: str) -> str:
        return args[0]

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        return [_unbroadcast(upstream, node.inputs[0])]

    def samples(self) -> Iterator[Sample]:
        yield Sample(((1,),), {"shape": (5,)})
        yield Sample(((3, 1, 4),), {"shape": (3, 7, 4)})
        yield Sample(((1, 5, 1),), {"shape": (2, 5, 3)})


@register
class FusedPointwise(Pointwise):
    """Several pointwise ops in one kernel; made by rewriting, never by models.

    Attribute `steps` is a tuple of (op name, attrs, argument indices): indices count the
    operands first, then earlier steps.
    """

    name = "fused"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        types = list(inputs)
        for op, own, arguments in attrs["steps"]:
            types.append(definition(op).infer([types[a] for a in arguments], own))
        return types[-1]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        values = list(inputs)
        for op, own, arguments in attrs["steps"]:
            values.append(definition(op).reference([values[a] for a in arguments], own))
        return values[-1]

    def lower(self, node: Node, to: Lowering) -> None:
        steps = [
            Step(_emitter(op, own), tuple(arguments)) for op, own, arguments in node.attrs["steps"]
        ]
        label = "+".join(op for op, _, _ in node.attrs["steps"])
        shapes = [value.shape for value in node.inputs]
        to.dispatch(pointwise(label, steps, node.shape, shapes), node.inputs, node)

    def samples(self) -> Iterator[Sample]:
        steps: tuple[Any, ...] = (
            ("add", {}, (0, 1)),
            ("gelu", {}, (3,)),
            ("mul", {}, (4, 2)),
            ("affine", {"scale": 2.0, "shift": 1.0}, (5,)),
        )
        for rows, columns in ((1, 1), (5, 7), (13, 8)):
            yield Sample(((rows, columns), (columns,), (1,)), {"steps": steps})


def _emitter(op: str, attrs: Attrs) -> Callable[..., str]:
    found = definition(op)
    if not isinstance(found, Pointwise):
        raise GraphError(f"fused: {op} is not pointwise")
    return lambda kind, *args: found.wgsl(attrs, kind, *args)


for _row in UNARY:
    add_definition(Unary(_row))
    add_definition(UnaryGrad(_row))
for _binary in BINARY:
    add_definition(Binary(_binary))


def unary(name: str, x: Node) -> Node:
    """Apply a function of the UNARY table."""
    return x.graph.add(name, [x])


def add(a: Node, b: Node) -> Node:
    """A + b, broadcasting."""
    return a.graph.add("add", [a, b])


def sub(a: Node, b: Node) -> Node:
    """A - b, broadcasting."""
    return a.graph.add("sub", [a, b])


def mul(a: Node, b: Node) -> Node:
    """A * b, broadcasting."""
    return a.graph.add("mul", [a, b])


def div(a: Node, b: Node) -> Node:
    """A / b, broadcasting."""
    return a.graph.add("div", [a, b])


def affine(x: Node, scale: float, shift: float = 0.0) -> Node:
    """Scale * x + shift for constants known when the graph is built."""
    return x.graph.add("affine", [x], scale=float(scale), shift=float(shift))


def expand(x: Node, shape: Sequence[int]) -> Node:
    """Repeat x along its axes of extent 1."""
    return x.graph.add("expand", [x], shape=tuple(shape))


def gelu(x: Node) -> Node:
    """Exact GELU, x * Phi(x)."""
    return unary("gelu", x)


def sigmoid(x: Node) -> Node:
    """1 / (1 + exp(-x))."""
    return unary("sigmoid", x)


def square(x: Node) -> Node:
    """X * x."""
    return unary("square", x)
