"""A program on the device, compared tensor by tensor with the float64 interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from engine.check import check_plan
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.session import Session
from models.nn import initial_parameters

TOLERANCE = 1e-4
"""Relative L2. f32 through a few hundred kernels is good to about 1e-5."""

FLOOR = 1e-3
"""Tensors are compared relative to at least this share of the largest one of their class: a
gradient that cancels to zero has no relative error."""


@dataclass(frozen=True)
class Comparison:
    """How far one tensor is from its reference; `error` is relative L2, NaN if not finite."""

    name: str
    shape: tuple[int, ...]
    error: float

    @property
    def good(self) -> bool:
        """Whether the error is tolerable; NaN is not."""
        return self.error <= TOLERANCE


def random_feeds(graph: Graph, below: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters near their initial values, f32 inputs in 0..1, u32 inputs less than `below`."""
    rng = np.random.default_rng(seed)
    feeds = initial_parameters(graph, seed)
    for name, value in feeds.items():
        noise = rng.normal(0, 0.02, value.shape)
        feeds[name] = (value + noise).astype(np.float32)
    for node in graph.nodes:
        if node.op == "input" and node.type.dtype == "u32":
            feeds[node.name] = rng.integers(0, below.get(node.name, 2), node.shape, np.uint32)
        elif node.op == "input":
            feeds[node.name] = rng.uniform(0, 1, node.shape).astype(np.float32)
    return feeds


def compare(gpu: Gpu, graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[Comparison]:
    """Check the plan, run it once on poisoned memory and compare all outputs and gradients.

    Raises PlanError when the plan itself is unsound.
    """
    plan = compile_graph(graph, gpu.facts)
    check_plan(plan, gpu.facts)
    session = Session(gpu, plan)
    session.load({name: value for name, value in feeds.items() if name in plan.tensors})
    session.poison()
    session.run()
    gradients = {f"gradient:{name}": node for name, node in graph.gradients.items()}
    return [
        *_compare(session, graph, feeds, graph.outputs),
        *_compare(session, graph, feeds, gradients),
    ]


def _compare(
    session: Session, graph: Graph, feeds: Mapping[str, np.ndarray], wanted: Mapping[str, Node]
) -> list[Comparison]:
    references = interpret(graph, feeds, [*wanted.values()])
    largest = max((float(np.sqrt(np.mean(r**2))) for r in references), default=0.0)
    results = []
    for (name, node), reference in zip(wanted.items(), references, strict=True):
        difference = float(np.linalg.norm(session.read(name).astype(np.float64) - reference))
        least = FLOOR * largest * sqrt(reference.size)
        scale = max(float(np.linalg.norm(reference)), least)
        error = difference / scale if scale else difference
        results.append(Comparison(name, node.shape, error))
    return results
