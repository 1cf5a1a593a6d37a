"""Moving averages of all trainable parameters, kept by the training plan beside the weights."""

from __future__ import annotations

from engine.graph import Graph, Node

RATE = "average.rate"
"""Input f32 [1]: how far the averages move towards the weights in a run; 1 minus the momentum."""


def declare_averages(graph: Graph, prefix: str) -> None:
    """State "prefix.NAME" for each trainable parameter declared so far, in their order.

    State starts at zero: load what the averages shall start from. They may be read like any other
    source, and no gradient reaches them.
    """
    for parameter in graph.parameters(trainable=True):
        graph.state(f"{prefix}.{parameter.name}", parameter.shape)


def update_averages(graph: Graph, prefix: str) -> None:
    """Append the effect that moves the averages towards the weights by the share in RATE.

    After `minimize` they follow the updated weights. Raises GraphError for a trainable parameter
    without an average.
    """
    parameters = graph.parameters(trainable=True)
    averages: list[Node] = [graph.source(f"{prefix}.{p.name}") for p in parameters]
    inputs = [graph.input(RATE, (1,)), *parameters, *averages]
    graph.effects.append(graph.add("average", inputs))
