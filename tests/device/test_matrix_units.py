"""Products, convolutions and attention by matrix units, against float64; where there are some."""

import importlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from bounds import watching
from cases import Feeds, relative_l2
from device_runs import outputs
from test_conv_kernels import add_convolution
from test_matmul import LAYOUTS, add_product

from engine import ops, tuning
from engine.autodiff import gradients
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.specialize import DeviceFacts, MatmulChoice
from engine.specialize_attention import AttentionChoice, StreamKey

pytestmark = pytest.mark.gpu

ROUNDED = (5e-5, 3e-3)
"""Relative error of sums of products of factors with 11 bits: neither strict nor ruined."""


@pytest.fixture
def facts(gpu: Gpu) -> DeviceFacts:
    """Of a GPU with the units of the device; the watch takes one binding."""
    if gpu.facts.matrix_units is None:
        pytest.skip(f"no matrix units through {gpu.implementation} on {gpu.name}")
    left = gpu.facts.max_storage_buffers - 1
    return replace(gpu.facts, is_cpu=False, max_storage_buffers=left)


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts) -> None:
    with watching(gpu) as watched:
        got = outputs(gpu, graph, feeds, facts, contract="accelerated")
        assert watched.left() == []
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        error = relative_l2(got[name].astype(np.float64), value)
        assert ROUNDED[0] < error < ROUNDED[1], f"{name}: {error:.1e}"


def force(monkeypatch: pytest.MonkeyPatch, choice: MatmulChoice) -> None:
    for name in ("factors", "conv"):
        module = importlib.import_module(f"engine.ops.{name}")
        monkeypatch.setattr(module, "choose_matmul", lambda *_: choice)


def test_products_on_extents_that_no_tile_divides(
    facts: DeviceFacts, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    u = facts.matrix_units
    assert u is not None
    choice = MatmulChoice("matrix", 2 * u.m, 2 * u.n, 2 * u.k, 2 * u.m, u.n, 1, 2, u)
    force(monkeypatch, choice)
    graph, feeds = Graph(), {}
    for shape, layout in zip([(0, 2, 67, 61), (0, 33, 36, 130)] * 2, LAYOUTS, strict=True):
        add_product(graph, feeds, shape, layout, rng)
    add_product(graph, feeds, (2, 9, 20, 37), (False, True), rng)
    add_convolution(graph, feeds, ((1, 9, 7, 12), 20, (3, 3), (2, 2), (1, 1)), rng)
    compare(gpu, graph, feeds, facts)


def test_parts_of_k(
    facts: DeviceFacts, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    u = facts.matrix_units
    assert u is not None
    force(monkeypatch, MatmulChoice("matrix", 2 * u.m, 2 * u.n, u.k, 2 * u.m, u.n, 3, 1, u))
    graph, feeds = Graph(), {}
    add_product(graph, feeds, (0, 33, 36, 130), (False, True), rng)
    compare(gpu, graph, feeds, facts)


def test_neither_small_nor_large_factors_leave_the_range(
    facts: DeviceFacts, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Derivatives of 1e-12, values beyond 65504, and blocks that grow along k."""
    u = facts.matrix_units
    assert u is not None
    force(monkeypatch, MatmulChoice("matrix", 2 * u.m, u.n, u.k, u.m, u.n, 1, 1, u))
    graph, feeds = Graph(), {}
    for first, last in itertools.product((1e-12, 1.0, 1e12), repeat=2):
        a, b = (graph.input(f"{n} {first} {last}", s) for n, s in (("a", (17, 96)), ("b", (96, 9))))
        growth = np.geomspace(first, last, 96)
        feeds[a.name] = (rng.standard_normal(a.shape) * growth).astype(np.float32)
        feeds[b.name] = rng.standard_normal(b.shape).astype(np.float32)
        graph.output(f"{first} {last}", ops.matmul(a, b))
    compare(gpu, graph, feeds, facts)


def test_what_tune_finds_is_used(
    facts: DeviceFacts, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the contract accelerated, units are measured beside strict kernels."""
    measured: list[MatmulChoice] = []
    best: list[MatmulChoice] = []

    class Scripted(tuning._Bench):
        def time(self, choice: MatmulChoice, hopeless_s: float = float("inf")) -> float:
            # The first is the usual one.
            if measured and choice.units and choice not in measured and not best:
                best.append(choice)
            measured.append(choice)
            return 0.5 if choice in best else 1.0

    monkeypatch.setattr(tuning, "_Bench", Scripted)
    monkeypatch.setattr(gpu, "facts", facts)
    graph = Graph()
    feeds: Feeds = {}
    add_product(graph, feeds, (0, 40, 24, 300), (False, True), rng)
    monkeypatch.setattr(gpu, "contract", "strict")
    assert not tuning.tune(gpu, [graph], 60) and not best
    measured.clear()
    monkeypatch.setattr(gpu, "contract", "accelerated")
    table = tuning.tune(gpu, [graph], 60)
    assert (table.contract, [*table.values()]) == ("accelerated", best)
    compare(gpu, graph, feeds, replace(facts, table=table))


def test_attention_and_its_gradients(
    facts: DeviceFacts, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Causal, with two heads of queries per head of keys, and small derivatives."""
    u = facts.matrix_units
    assert u is not None

    def choose(key: StreamKey, _: DeviceFacts) -> AttentionChoice:
        lanes, splits = 4 * u.subgroup_size // u.m, 2 if key.owned == 1 else 1
        return AttentionChoice("matrix", 2 * u.m, 16, lanes, key.width, splits=splits, units=u)

    monkeypatch.setattr(importlib.import_module("engine.ops.stream"), "choose_attention", choose)
    graph, feeds = Graph(), {}
    q = graph.input("q", (2, 37, 16))
    k, v = (graph.input(name, (1, 37, 16)) for name in "kv")
    y = ops.attention(q, k, v, causal=True)
    g = graph.input("g", y.shape)
    # Scores that raise the references of a softmax again and again.
    for node, scale in ((q, 3.0), (k, 1.0), (v, 1.0), (g, 1e-7)):
        feeds[node.name] = (rng.standard_normal(node.shape) * scale).astype(np.float32)
    feeds["k"] *= np.linspace(0.1, 2.0, 37, dtype=np.float32)[:, None]
    graph.output("y", y)
    for node, grad in zip((q, k, v), gradients(y, [q, k, v], g), strict=True):
        graph.output(f"d{node.name}", grad)
    compare(gpu, graph, feeds, facts)
