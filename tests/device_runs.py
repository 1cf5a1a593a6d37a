"""Running a graph on a device for tests: compile, load, poison, run, read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cases import Feeds

from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph
from engine.kernels.merged import SEPARATOR
from engine.plan import Plan
from engine.session import Session
from engine.specialize import DeviceFacts

VARIANTS = ("cpu", "gpu", "small")


def variant(gpu: Gpu, name: str) -> DeviceFacts:
    """Facts that select the kernels of a CPU device, of a GPU, or of the smallest GPU allowed."""
    facts = replace(gpu.facts, is_cpu=name == "cpu")
    if name != "small":
        return facts
    return replace(facts, max_shared_bytes=16384, max_storage_buffers=8, max_invocations=256)


def kernel_labels(plan: Plan) -> list[str]:
    """Labels of a plan's kernels, also of those that share a launch."""
    return [label for d in plan.dispatches for label in d.kernel.label.split(SEPARATOR)]


def start(gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts, **options: bool) -> Session:
    """A session with its sources written and everything else poisoned."""
    plan = compile_graph(graph, facts, **options)
    session = Session(gpu, plan)
    # Inputs that no output needs are not part of the plan.
    session.load({name: value for name, value in feeds.items() if name in plan.tensors})
    session.poison()
    return session


def outputs(
    gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts | None = None, **options: bool
) -> dict[str, np.ndarray]:
    """Every output of one run."""
    session = start(gpu, graph, feeds, facts or gpu.facts, **options)
    session.run()
    return {name: session.read(name) for name in graph.outputs}
