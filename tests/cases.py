"""What tests with and without a device share: op samples as graphs, and how values compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.graph import Graph, Node
from engine.op import Op, Sample, definitions

FIXED_OPERANDS = {"rope": (1, 2)}
"""Operands that are constants by definition of the op: no gradient flows to them."""

Feeds = dict[str, np.ndarray]


def values_of_ops() -> list[str]:
    """Ops that produce a value, by name."""
    return [name for name, op in definitions().items() if not op.effect]


def differentiable_ops() -> list[str]:
    """Ops that define a gradient rule."""
    return [name for name, op in definitions().items() if type(op).gradient is not Op.gradient]


def draw(sample: Sample, rng: np.random.Generator) -> list[np.ndarray]:
    """f32 operands for a sample, away from 0, where relu and abs have no derivative."""
    drawn = (rng.uniform(sample.low, sample.high, shape) for shape in sample.shapes)
    return [np.where(np.abs(v) < 0.02, 0.05, v).astype(np.float32) for v in drawn]


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
        if k in FIXED_OPERANDS.get(op, ()):
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
