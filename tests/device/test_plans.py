"""Compiled plans on the device: rewriting, aliasing and chunking must not change results."""

from itertools import pairwise

import numpy as np
import pytest
from cases import Feeds, assert_close
from device_runs import outputs, start
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import programs

from engine import ops
from engine.chunks import cut, estimated_costs
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret

pytestmark = pytest.mark.gpu

# Each example compiles kernels that no other has.
FEW = settings(max_examples=20)


@FEW
@given(program=programs(steps=12))
def test_random_graphs_mean_the_same_however_compiled(
    program: tuple[Graph, Feeds], gpu: Gpu
) -> None:
    graph, feeds = program
    plain = outputs(gpu, graph, feeds, optimize=False)
    rewritten = outputs(gpu, graph, feeds)
    separate = outputs(gpu, graph, feeds, alias=False)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        # Gradients are sums of products: their error is relative to the terms, at most about 10.
        scale = max(1.0, float(np.abs(value).max()))
        for got in (plain, rewritten):
            assert np.abs(got[name] - value).max() <= 2e-5 * scale, name
        assert np.array_equal(rewritten[name], separate[name]), f"{name}: aliasing shows"
        assert np.abs(rewritten[name] - plain[name]).max() <= 1e-5 * scale, name


@FEW
@given(program=programs(steps=12), data=st.data())
def test_every_cut_of_random_graphs_is_bit_equal(
    program: tuple[Graph, Feeds], data: st.DataObject, gpu: Gpu
) -> None:
    graph, feeds = program
    session = start(gpu, graph, feeds, gpu.facts)
    session.run()
    want = {name: session.read(name) for name in graph.outputs}
    costs = estimated_costs(session.plan)
    free = sorted(data.draw(st.sets(st.integers(1, max(1, len(costs) - 1)))))
    bounds = [0, *(b for b in free if b < len(costs)), len(costs)]
    cuts = [cut(costs, k) for k in (1, 2, 3, len(costs) + 1)]
    cuts.append(list(pairwise(bounds)))
    for chunks in cuts:
        session.poison()
        for first, last in chunks:
            encoder = gpu.device.create_command_encoder()
            session.encode(encoder, first, last)
            gpu.submit(encoder)
        for name, value in want.items():
            assert np.array_equal(session.read(name), value), (name, chunks)


def test_a_repeated_run_is_bit_equal(gpu: Gpu, rng: np.random.Generator) -> None:
    graph = Graph()
    x = graph.input("x", (37, 301))
    y = ops.softmax(ops.matmul(x, x, transpose_b=True))
    graph.output("y", ops.reduce_mean(ops.layer_norm(ops.matmul(y, x), eps=1e-5), [0]))
    feeds = {"x": rng.uniform(-1, 1, (37, 301)).astype(np.float32)}
    session = start(gpu, graph, feeds, gpu.facts)
    session.run()
    first = session.read("y")
    for _ in range(3):
        session.poison()
        session.run()
        assert np.array_equal(session.read("y"), first)
    assert_close(first, interpret(graph, feeds, [graph.outputs["y"]])[0], 1e-5)


@pytest.mark.parametrize("optimize", [True, False])
def test_outputs_may_view_each_other_and_sources(optimize: bool, gpu: Gpu) -> None:
    graph = Graph()
    x = graph.input("x", (3, 8))
    y = ops.affine(x, 2.0)
    graph.output("rows", y)
    graph.output("pairs", ops.reshape(y, (12, 2)))
    graph.output("flat", ops.reshape(x, (24,)))
    value = np.arange(24, dtype=np.float32).reshape(3, 8)
    got = outputs(gpu, graph, {"x": value}, optimize=optimize)
    assert np.array_equal(got["rows"], 2 * value)
    assert np.array_equal(got["pairs"], 2 * value.reshape(12, 2))
    assert np.array_equal(got["flat"], value.ravel())
