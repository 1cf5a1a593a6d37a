"""Measuring kernels: what is found computes the same, and finds its way into later runs."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import Feeds, assert_close
from device_runs import outputs, variant

from app.cli import main
from app.network import Network, NetworkConfig
from engine import ops, tuning
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.kernel_table import KernelTable, load_table, table_path
from engine.specialize import (
    MORE_TILES,
    DeviceFacts,
    MatmulChoice,
    MatmulKey,
    choose_matmul,
    matmul_candidates,
)
from engine.tuning import Measured, products, tune

pytestmark = pytest.mark.gpu

BIG = MatmulKey("nt", 1, 40, 24, 300)
VECTOR = MatmulKey("nt", 1, 1, 24, 40)
BATCH = MatmulKey("tn", 3, 5, 7, 8)


def small(rng: np.random.Generator) -> tuple[Graph, Feeds]:
    """Four products of three shapes, one of them twice."""
    graph = Graph()
    x, w = graph.input("x", (40, 300)), graph.input("w", (24, 300))
    v, u = graph.input("v", (1, 40)), graph.input("u", (24, 40))
    y = ops.gelu(ops.matmul(x, w, transpose_b=True))
    graph.output("y", y)
    graph.output("z", ops.matmul(ops.sigmoid(x), w, transpose_b=True))
    graph.output("v u", ops.matmul(v, u, transpose_b=True))
    p, q = graph.input("p", (3, 8, 5)), graph.input("q", (3, 8, 7))
    graph.output("p q", ops.matmul(p, q, transpose_a=True))
    feeds = {n.name: rng.uniform(-1, 1, n.shape).astype(np.float32) for n in (x, w, v, u, p, q)}
    return graph, feeds


def play(monkeypatch: pytest.MonkeyPatch, seconds: dict[MatmulChoice, float]) -> list[MatmulChoice]:
    """Let kernels take so long as given, else 1 s; the choices measured."""
    measured: list[MatmulChoice] = []

    class Scripted(tuning._Bench):
        def time(self, choice: MatmulChoice, hopeless_s: float = float("inf")) -> float:
            measured.append(choice)
            return seconds.get(choice, 1.0)

    monkeypatch.setattr(tuning, "_Bench", Scripted)
    return measured


def gpu_facts(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> DeviceFacts:
    # Only strict kernels are tuned.
    facts = replace(gpu.facts, is_cpu=False, matrix_units=None)
    monkeypatch.setattr(gpu, "facts", facts)
    return facts


def test_products_are_counted_after_rewriting(rng: np.random.Generator) -> None:
    graph, _ = small(rng)
    assert products(graph, DeviceFacts()) == {BIG: 2, VECTOR: 1, BATCH: 1}


def test_what_is_found_computes_the_same(gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = small(rng)
    seen: list[Measured] = []
    table = tune(gpu, [graph, graph], 60, seen.append)
    assert (table.adapter, table.driver) == (gpu.name, gpu.driver)
    assert [r.key for r in seen] == [BIG, VECTOR, BATCH], "heaviest first, each once"
    for r in seen:
        assert 0 < r.best_us <= r.usual_us and r.tried >= 1
        assert table.get(r.key) == r.choice
        assert r.choice is None or r.choice in matmul_candidates(r.key, gpu.facts)
    before = outputs(gpu, graph, feeds)
    after = outputs(gpu, graph, feeds, replace(gpu.facts, table=table))
    for name in graph.outputs:
        assert_close(after[name], before[name], 1e-5, name)


def test_the_fastest_wins_if_clearly(
    gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, feeds = small(rng)
    facts = gpu_facts(gpu, monkeypatch)
    split = MatmulChoice("tiled", 64, 32, 32, 8, 4, 3)
    lanes = MatmulChoice("gemv", 1, 32, 32, 1, 4)
    hardly = matmul_candidates(BATCH, facts)[1]
    measured = play(monkeypatch, {split: 0.5, lanes: 0.9, hardly: 0.98})
    seen: list[Measured] = []
    table = tune(gpu, [graph], 600, seen.append)
    assert dict(table) == {BIG: split, VECTOR: lanes}
    assert [(r.usual_us, r.best_us) for r in seen] == [(1e6, 0.5e6), (1e6, 0.9e6), (1e6, 1e6)]
    assert set(measured) >= {*matmul_candidates(BIG, facts), *matmul_candidates(BATCH, facts)}
    before = outputs(gpu, graph, feeds, facts)
    after = outputs(gpu, graph, feeds, replace(facts, table=table))
    for name in graph.outputs:
        assert_close(after[name], before[name], 1e-5, name)


@pytest.mark.parametrize("tile", MORE_TILES, ids=str)
def test_tiles_that_only_tuning_chooses(
    tile: MatmulChoice, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph, feeds, table = Graph(), {}, {}
    # Beyond one tile and within it, odd extents and multiples of 4.
    shapes = [(0, 131, 65, 9), (0, 36, 132, 300), (2, 5, 129, 3), (0, 67, 4, 20)]
    for layout, (batch, m, n, k) in zip(("nn", "nt", "tn", "tt"), shapes, strict=True):
        lead, ta, tb = ((batch,) if batch else ()), layout[0] == "t", layout[1] == "t"
        a = graph.input(f"{layout}.a", (*lead, k, m) if ta else (*lead, m, k))
        b = graph.input(f"{layout}.b", (*lead, n, k) if tb else (*lead, k, n))
        for node in (a, b):
            feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)
        graph.output(layout, ops.matmul(a, b, transpose_a=ta, transpose_b=tb))
        key = MatmulKey(layout, batch or 1, m, n, k)
        table[key] = replace(tile, split_k=4 if k > 256 else 1)
    facts = replace(variant(gpu, "gpu"), table=table)
    for key, choice in table.items():
        assert choose_matmul(*key[1:], facts, key.layout) == choice
    got = outputs(gpu, graph, feeds, facts)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        assert_close(got[name], value, 1e-5, name)


def test_a_lucky_time_does_not_win(
    gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = small(rng)
    times = itertools.chain([1.0, 0.5], itertools.repeat(1.0))
    monkeypatch.setattr(tuning._Bench, "time", lambda *_, **__: next(times))
    assert not tune(gpu, [graph], 60)


def test_little_time_keeps_what_is_known(
    gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = small(rng)
    usual, *_, last = matmul_candidates(BIG, gpu.facts)
    other = VECTOR._replace(n=99)
    known = KernelTable(gpu.name, gpu.driver).updated({BIG: last, other: usual})
    measured = play(monkeypatch, {last: 0.5})
    assert tune(gpu, [graph], 0.0, known=known) == known and not measured
    clock = itertools.chain([0.0, 0.0], itertools.repeat(1.0))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: next(clock))
    assert tune(gpu, [graph], 0.5, known=known) == known
    assert set(measured) == {usual, last}
    measured = play(monkeypatch, {last: 2.0})
    clock = itertools.chain([0.0, 0.0], itertools.repeat(1.0))
    assert dict(tune(gpu, [graph], 0.5, known=known)) == {other: usual}


def test_the_command_stores_what_a_network_uses(
    gpu: Gpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("engine.cache.sys.platform", "linux")
    monkeypatch.setattr(Gpu, "open", lambda *_, **__: gpu)
    assert main(["tune", "infer", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    path = table_path(gpu)
    assert tmp_path in path.parents and path.exists() and f"stored in {path}" in out
    assert "usual us" in out and "1 x 201 x 384 x 384" in out
    key = MatmulKey("nt", 1, 201, 384, 384)
    usual, *others = matmul_candidates(key, gpu.facts)
    load_table(gpu).updated({key: others[-1]}).save(path)
    network = Network(gpu, NetworkConfig(depth=1))
    found = [d.kernel.source for d in network.infer.plan.dispatches]
    path.unlink()
    plain = Network(gpu, NetworkConfig(depth=1)).infer.plan.dispatches
    assert choose_matmul(*key[1:], gpu.facts, "nt") == usual
    assert found != [d.kernel.source for d in plain]


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "nothing"]) == 2
    assert "there is no model 'nothing'" in capsys.readouterr().err
    for seconds in ("0", "-1", "inf", "nan"):
        assert main(["tune", "--seconds", seconds]) == 2
        assert "--seconds must be above 0" in capsys.readouterr().err
