"""Whether a device's matrix units compute what they should, by comparison with its strict kernels.

Drivers and shader compilers for them are young, and a wrong result may not look wrong.
"""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.optim import keep_gradients
from engine.session import Session
from engine.specialize import Contract

TOKENS, HEADS, HEAD = 1500, 6, 64
"""Large enough for units to be chosen, for products and for attention."""
TOLERANCE = 0.02
"""Relative L2 error of the loss and of every gradient; right ones have 0.001."""
WEIGHTS = ("query", "key", "value", "mix")
STEEP = 2.0**14
"""How much larger the last columns of a factor are: more than its first block leaves room for."""


def units_are_right(gpu: Gpu) -> bool:
    """Train one attention layer for a step under both contracts, and compare all results, with a
    product whose factors are steep: units must give infinities where f16 overflows.

    Takes seconds, most of them to compile. Raises GpuError when the device is lost.
    """
    strict, accelerated = (_results(gpu, contract) for contract in ("strict", "accelerated"))
    return all(_close(got, want) for got, want in zip(accelerated, strict, strict=True))


def _close(got: np.ndarray, want: np.ndarray) -> bool:
    error = float(np.linalg.norm(got - want))
    # Written so that NaN is not close.
    return error <= TOLERANCE * float(np.linalg.norm(want))


def _results(gpu: Gpu, contract: Contract) -> list[np.ndarray]:
    graph = _layer()
    session = Session(gpu, compile_graph(graph, gpu.facts, contract=contract))
    rng = np.random.default_rng(0)
    for name in ("x", *WEIGHTS):
        shape = session.type(name).shape
        session.write(name, (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))
    for name, power in (("rising", 1), ("falling", -1)):
        shape = session.type(name).shape
        slope = np.where(np.arange(shape[-1]) < shape[-1] // 2, 1.0, STEEP**power)
        session.write(name, (rng.standard_normal(shape) * slope).astype(np.float32))
    session.poison()
    session.run()
    gradients = (session.read(f"gradient:{name}") for name in WEIGHTS)
    return [session.read("loss"), session.read("steep"), *gradients]


def _layer() -> Graph:
    graph, width = Graph(), HEADS * HEAD
    x = graph.input("x", (TOKENS, width))

    def weight(name: str) -> Node:
        zeros = lambda rng, shape: np.zeros(shape, np.float32)  # noqa: E731
        return graph.parameter(name, (width, width), zeros, trainable=True)

    heads = (
        ops.permute(ops.reshape(ops.linear(x, weight(name)), (TOKENS, HEADS, HEAD)), (1, 0, 2))
        for name in WEIGHTS[:3]
    )
    mixed = ops.reshape(ops.permute(ops.attention(*heads), (1, 0, 2)), (TOKENS, width))
    loss = ops.mean_square(ops.linear(mixed, weight("mix")))
    graph.output("loss", loss)
    rising, falling = graph.input("rising", (TOKENS, width)), graph.input("falling", (width, width))
    graph.output("steep", ops.matmul(rising, falling, transpose_b=True))
    keep_gradients(loss)
    return graph
