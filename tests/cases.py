"""What tests with and without a device share: op samples as graphs, and how values compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.graph import EXTRA, Graph, Node
from engine.op import Op, Sample, definitions

FIXED_OPERANDS = {"rope": (1, 2), "rope_columns": (1, 2), "cross_entropy": (2,)}
"""Operands that are constants by definition of the op, beside integers: no gradient flows there."""

CUTS = ("argmax", "argmin", "cast", "greater", "stop_gradient")
"""Ops through which no gradient flows at all."""

Feeds = dict[str, np.ndarray]


def values_of_ops() -> list[str]:
    """Ops that compute a value of their own, by name."""
    return [name for name, op in definitions().items() if not op.effect and name != EXTRA]


def differentiable_ops() -> list[str]:
    """Ops whose gradient rule leads somewhere."""
    found = definitions().items()
    return [name for name, op in found if type(op).gradient is not Op.gradient and name not in CUTS]


def draw(sample: Sample, rng: np.random.Generator) -> list[np.ndarray]:
    """Operands for a sample: u32 where it says so, else f32 away from 0, where relu and abs have
    no derivative.
    """
    drawn = []
    for k, shape in enumerate(sample.shapes):
        if k in sample.integers:
            drawn.append(rng.integers(sample.integers[k], size=shape, dtype=np.uint32))
            continue
        value = rng.uniform(sample.low, sample.high, shape)
        drawn.append(np.where(np.abs(value) < 0.02, 0.05, value).astype(np.float32))
    return drawn


def operands(
    graph: Graph, label: str, sample: Sample, feeds: Feeds, rng: np.random.Generator
) -> list[Node]:
    """Inputs drawn for a sample; their values go to `feeds`."""
    nodes = []
    for k, value in enumerate(draw(sample, rng)):
        dtype = "u32" if k in sample.integers else "f32"
        nodes.append(graph.input(f"{label}.x{k}", value.shape, dtype))
        feeds[nodes[-1].name] = value
    return nodes


def signed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Coefficients of either sign, none of them near 0 or 1."""
    return rng.uniform(0.3, 0.8, shape) * rng.choice((-1, 1), shape)


@dataclass(frozen=True)
class MidGraph:
    """A sample in the middle of a graph: something before it, an uneven loss after it."""

    sources: tuple[Node, ...]
    loss: Node


def place(
    graph: Graph, label: str, op: str, sample: Sample, feeds: Feeds, rng: np.random.Generator
) -> MidGraph:
    """Append `affine -> op -> loss`, where the op's result and its first operand both have two
    uses and no upstream gradient is 1. Values of the sources go to `feeds`.
    """
    sources, entered = [], []
    for k, value in enumerate(draw(sample, rng)):
        if k in FIXED_OPERANDS.get(op, ()) or k in sample.integers:
            entered.append(graph.constant(f"{label}.fixed{k}", value))
            continue
        source = graph.input(f"{label}.x{k}", value.shape)
        feeds[source.name] = ((value - 0.5) / 2).astype(np.float32)
        sources.append(source)
        entered.append(ops.affine(source, 2.0, 0.5))
    y = graph.add(op, entered, **sample.attrs)
    first = graph.constant(f"{label}.first", signed(rng, y.shape))
    second = graph.constant(f"{label}.second", signed(rng, y.shape))
    terms = ops.add(ops.mul(y, first), ops.mul(ops.sigmoid(y), second))
    extra = ops.reduce_sum(ops.square(entered[0]), range(len(entered[0].shape)), scale=0.25)
    return MidGraph(tuple(sources), ops.add(ops.reduce_sum(terms, range(len(y.shape))), extra))


def deviation(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference relative to the largest wanted magnitude; NaN if anything is NaN."""
    assert got.shape == want.shape, f"shape {got.shape}, want {want.shape}"
    return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-30))


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference relative to the norm of what is wanted."""
    assert got.shape == want.shape, f"shape {got.shape}, want {want.shape}"
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def assert_close(got: np.ndarray, want: np.ndarray, tolerance: float, label: str = "") -> None:
    """`deviation` is at most `tolerance`; NaN fails."""
    error = deviation(got, want)
    assert error <= tolerance, f"{label}: deviates by {error:.2e}, allowed {tolerance:.0e}"
