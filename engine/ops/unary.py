"""Functions of one operand: one table row each.

A row gives the function and its derivative, each as WGSL and as NumPy; the derivative may use the
argument x and the result y. WGSL templates work for f32 and vec4<f32> alike ({T}).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.graph import Node, TensorType
from engine.op import Array, Attrs, Sample, add_definition, require
from engine.ops.elementwise import SHAPES, Pointwise


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)) in NumPy, without overflow."""
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

ROOT, CUBIC = math.sqrt(2 / math.pi), 0.044715
# Clamped where tanh is 1 to the last bit: some devices overflow beyond.
BEND = (
    "tanh(clamp({x} * ({T}(0.7978845608028654) + {T}(0.0356774081) * {x} * {x}),"
    " {T}(-12.0), {T}(12.0)))"
)


def _bend(x: Array) -> Array:
    return np.tanh(ROOT * (x + CUBIC * x**3))


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
        "select({T}(0.0), {T}(1.0), {y} > {T}(0.0))",
        lambda x, y: (y > 0) * 1.0,
    ),
    UnaryRow("sigmoid", SIGMOID, logistic, "({y} * ({T}(1.0) - {y}))", lambda x, y: y * (1 - y)),
    UnaryRow("tanh", "tanh({x})", np.tanh, "({T}(1.0) - {y} * {y})", lambda x, y: 1 - y * y),
    UnaryRow(
        "silu",
        "({x} * " + SIGMOID + ")",
        lambda x: x * logistic(x),
        "(" + SIGMOID + " + {y} * ({T}(1.0) - " + SIGMOID + "))",
        lambda x, y: logistic(x) + y * (1 - logistic(x)),
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
    UnaryRow(
        "rsqrt",
        "inverseSqrt({x})",
        lambda x: 1 / np.sqrt(x),
        "({T}(-0.5) * {y} / {x})",
        lambda x, y: -0.5 * y / x,
        0.1,
        4,
    ),
    UnaryRow(
        "recip",
        "({T}(1.0) / {x})",
        lambda x: 1 / x,
        "(-{y} * {y})",
        lambda x, y: -y * y,
        0.2,
        4,
    ),
    UnaryRow("sin", "sin({x})", np.sin, "cos({x})", lambda x, y: np.cos(x)),
    UnaryRow("cos", "cos({x})", np.cos, "(-sin({x}))", lambda x, y: -np.sin(x)),
    UnaryRow(
        "softplus",
        "(max({x}, {T}(0.0)) + log({T}(1.0) + exp(-abs({x}))))",
        lambda x: np.logaddexp(0, x),
        SIGMOID,
        lambda x, y: logistic(x),
    ),
    UnaryRow(
        "gelu_tanh",
        "({T}(0.5) * {x} * ({T}(1.0) + " + BEND + "))",
        lambda x: 0.5 * x * (1 + _bend(x)),
        "({T}(0.5) * ({T}(1.0) + "
        + BEND
        + ") + {T}(0.5) * {x} * ({T}(1.0) - "
        + BEND
        + " * "
        + BEND
        + ") * ({T}(0.7978845608028654) + {T}(0.1070322244) * {x} * {x}))",
        lambda x, y: (
            0.5 * (1 + _bend(x)) + 0.5 * x * (1 - _bend(x) ** 2) * ROOT * (1 + 3 * CUBIC * x * x)
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
        # Where the derivative needs the result only, nobody has to keep the argument.
        x = node.inputs[0] if "{x}" in self.row.wgsl_derivative else node
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


for _row in UNARY:
    add_definition(Unary(_row))
    add_definition(UnaryGrad(_row))


def unary(name: str, x: Node) -> Node:
    """Apply a function of the UNARY table."""
    return x.graph.add(name, [x])


def gelu(x: Node) -> Node:
    """Exact GELU, x * Phi(x)."""
    return unary("gelu", x)


def sigmoid(x: Node) -> Node:
    """1 / (1 + exp(-x))."""
    return unary("sigmoid", x)


def square(x: Node) -> Node:
    """x * x."""
    return unary("square", x)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    return unary("relu", x)


def silu(x: Node) -> Node:
    """x * sigmoid(x)."""
    return unary("silu", x)


def gelu_tanh(x: Node) -> Node:
    """GELU by its tanh approximation."""
    return unary("gelu_tanh", x)


def tanh(x: Node) -> Node:
    """Hyperbolic tangent."""
    return unary("tanh", x)
