"""Products of a matrix and few vectors: every layout and shape of workgroup, against float64."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import Feeds, assert_close
from device_runs import kernel_labels, outputs, start, variant

from engine import ops
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.interpret import interpret
from engine.kernels.gemv import STEPS
from engine.specialize import (
    DeviceFacts,
    MatmulChoice,
    MatmulKey,
    choose_for_rows,
    choose_matmul,
    matmul_candidates,
)

pytestmark = pytest.mark.gpu

LAYOUTS = ("nn", "nt", "tn", "tt")
ROWS = [
    (1, 1, 1),
    (1, 1, 7),
    (1, 5, 1),
    (1, 13, 67),
    (1, 64, 128),
    (2, 8, 6),
    (3, 6, 301),
    (4, 31, 36),
]
COLUMNS = [(5, 1, 1), (37, 1, 67), (64, 1, 128), (9, 1, 301), (8, 1, 3)]
"""m, n, k"""


def product(
    graph: Graph, feeds: Feeds, key: MatmulKey, rng: np.random.Generator, plain: bool = False
) -> tuple[Node, str]:
    """Inputs of a product in its layout, drawn, and the product; batch 1 of matrices if `plain`."""
    layout, batch, m, n, k = key
    lead = () if plain else (batch,)
    label = f"{layout} {batch}x{m}x{n}x{k}"
    a = graph.input(f"{label}.a", (*lead, k, m) if layout[0] == "t" else (*lead, m, k))
    b = graph.input(f"{label}.b", (*lead, n, k) if layout[1] == "t" else (*lead, k, n))
    draw(feeds, rng, a, b)
    ta, tb = layout[0] == "t", layout[1] == "t"
    return ops.matmul(a, b, transpose_a=ta, transpose_b=tb), label


def draw(feeds: Feeds, rng: np.random.Generator, *nodes: Node) -> None:
    for node in nodes:
        feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts) -> None:
    """Every product is by a gemv kernel and equals the interpreter's."""
    made = kernel_labels(compile_graph(graph, facts))
    assert sum("_gemv" in label for label in made) == len(graph.outputs), made
    got = outputs(gpu, graph, feeds, facts)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        assert_close(got[name], value, 1e-5, name)


@pytest.mark.parametrize("device", ["gpu", "small", "64 invocations"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes(layout: str, device: str, gpu: Gpu, rng: np.random.Generator) -> None:
    facts = variant(gpu, "gpu" if device == "gpu" else "small")
    if device == "64 invocations":
        facts = replace(facts, max_invocations=64)
    graph, feeds = Graph(), {}
    for m, n, k in [*ROWS, *COLUMNS]:
        node, label = product(graph, feeds, MatmulKey(layout, 1, m, n, k), rng, plain=True)
        graph.output(label, node)
    compare(gpu, graph, feeds, facts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches(layout: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    for batch, m, n, k in [(3, 1, 9, 10), (2, 4, 8, 12), (5, 3, 2, 1), (3, 7, 1, 33), (2, 8, 1, 8)]:
        node, label = product(graph, feeds, MatmulKey(layout, batch, m, n, k), rng)
        graph.output(label, node)
    compare(gpu, graph, feeds, variant(gpu, "gpu"))


def test_more_workgroups_than_one_axis_of_the_grid_has(gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    node, label = product(graph, feeds, MatmulKey("nn", 65537, 1, 1, 2), rng)
    graph.output(label, node)
    compare(gpu, graph, feeds, variant(gpu, "gpu"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_epilogues(layout: str, gpu: Gpu, rng: np.random.Generator) -> None:
    """gelu(y + row) * scalar + full, in the product's own launch or behind split k."""
    graph, feeds = Graph(), {}
    for batch, m, n, k in [(1, 1, 7, 9), (1, 3, 8, 12), (2, 4, 5, 6), (1, 6, 1, 9), (2, 8, 1, 5)]:
        node, label = product(graph, feeds, MatmulKey(layout, batch, m, n, k), rng, batch == 1)
        row = graph.input(f"{label}.row", (n,))
        scalar = graph.input(f"{label}.scalar", (1,))
        full = graph.input(f"{label}.full", node.shape)
        draw(feeds, rng, row, scalar, full)
        y = ops.mul(ops.gelu(ops.add(node, row)), scalar)
        graph.output(label, ops.add(y, full))
    facts = variant(gpu, "gpu")
    assert len(kernel_labels(compile_graph(graph, facts))) == len(graph.outputs)
    compare(gpu, graph, feeds, facts)
    table = {}
    for batch, m, n, k in [(1, 1, 7, 9), (1, 3, 8, 12), (1, 6, 1, 9)]:
        key = MatmulKey(layout, batch, m, n, k)
        # No candidate splits so short a k: the kernels can, with empty parts too.
        table[key] = replace(choose_matmul(*key[1:], facts, layout), split_k=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.specialize.matmul_candidates", lambda key, _: [table.get(key)])
        split = replace(facts, table=table)
        assert len(kernel_labels(compile_graph(graph, split))) == len(graph.outputs) + len(table)
        compare(gpu, graph, feeds, split)


KEYS = [
    MatmulKey("nt", 1, 1, 37, 270),
    MatmulKey("nn", 1, 2, 37, 270),
    MatmulKey("tn", 1, 41, 1, 270),
    MatmulKey("nt", 1, 41, 1, 270),
    MatmulKey("tt", 1, 4, 40, 268),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_every_candidate_computes_the_product(
    key: MatmulKey, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph, feeds = Graph(), {}
    node, label = product(graph, feeds, key, rng, plain=True)
    graph.output(label, node)
    (want,) = interpret(graph, feeds, [node])
    facts = variant(gpu, "small")
    candidates = [c for c in matmul_candidates(key, facts) if c.variant == "gemv"]
    assert len(candidates) > 20 and len({c.workgroup for c in candidates}) > 2
    for choice in [candidates[0], *rng.choice(np.array(candidates, object), 7, replace=False)]:
        got = outputs(gpu, graph, feeds, replace(facts, table={key: choice}))
        assert_close(got[label], want, 1e-5, str(choice))


def test_packed_weights(gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    x = graph.input("x", (1, 64))
    weights = [graph.input(f"w{n}", (n, 64)) for n in (3, 8, 5)]
    draw(feeds, rng, x, *weights)
    graph.output("y", graph.add("packed_matmul", [x, *weights]))
    compare(gpu, graph, feeds, variant(gpu, "gpu"))


def test_normalised_rows_longer_than_what_is_loaded_at_a_time(
    gpu: Gpu, rng: np.random.Generator
) -> None:
    m, n, k = 3, 9, 301
    graph, feeds = Graph(), {}
    nodes = [
        graph.input(name, shape) for name, shape in (("x", (m, k)), ("g", (k,)), ("w", (n, k)))
    ]
    draw(feeds, rng, *nodes)
    product = ("matmul", {"transpose_a": False, "transpose_b": True, "epilogue": ()})
    rows = ("rms_norm", {"eps": 1e-2})
    graph.output("y", graph.add("prologue", nodes, rows=rows, product=product, given=2))
    facts = replace(variant(gpu, "gpu"), max_invocations=8)
    assert k > 4 * STEPS * choose_for_rows(m, n, k, facts).lanes_k
    compare(gpu, graph, feeds, facts)


def test_the_same_bits_every_time(gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    node, label = product(graph, feeds, MatmulKey("nt", 1, 1, 33, 999), rng, plain=True)
    graph.output(label, node)
    session = start(gpu, graph, feeds, variant(gpu, "gpu"))
    runs = []
    for _ in range(3):
        session.poison()
        session.run()
        runs.append(session.read(label).tobytes())
    assert len(set(runs)) == 1


@pytest.mark.parametrize("invocations", [64, 256, 1024])
def test_choices_fit_the_device(invocations: int) -> None:
    facts = DeviceFacts(max_invocations=invocations)
    extents = (1, 3, 4, 7, 576, 49152)
    for layout, batch, m, n, k in itertools.product(LAYOUTS, (1, 9), extents, extents, extents):
        choice = choose_matmul(batch, m, n, k, facts, layout)
        assert choice.fits(facts)
        assert (choice.variant == "gemv") == (m <= 4 or n == 1)
        assert choice.split_k == 1 or (batch == 1 and choice.split_k * choice.lanes_k <= k)


@pytest.mark.parametrize("invocations", [64, 256, 1024])
def test_rows_that_are_normalised_leave_room_for_their_squares(invocations: int) -> None:
    """Also where a measured choice does not, which is kept elsewhere."""
    facts = DeviceFacts(max_invocations=invocations)
    for m, n, k in itertools.product((1, 2, 3, 4), (1, 576, 49152), (7, 576, 4096)):
        key = MatmulKey("nt", 1, m, n, k)
        measured = [c for c in matmul_candidates(key, facts) if c.variant == "gemv"]
        for table in ({}, {key: max(measured, key=lambda c: c.shared_bytes)}):
            choice = choose_for_rows(m, n, k, replace(facts, table=table))
            assert choice.variant == "gemv" and choice.split_k == 1 and choice.fits(facts)
            squares = 4 * choice.workgroup * m
            assert choice.shared_bytes + squares <= facts.max_shared_bytes, (key, choice)


def test_cpu_devices_and_gathered_operands_keep_their_kernels() -> None:
    assert choose_matmul(1, 1, 64, 64, DeviceFacts(is_cpu=True), "nt").variant == "direct"
    assert choose_matmul(1, 1, 64, 64, DeviceFacts()).variant == "tiled"


def test_reads_the_matrix_with_enough_invocations() -> None:
    """One token through a layer of a small language model: at least 4096 invocations on it."""
    for layout, n, k in [
        ("nt", 576, 576),
        ("nn", 1536, 576),
        ("nn", 576, 1536),
        ("nt", 49152, 576),
    ]:
        choice: MatmulChoice = choose_matmul(1, 1, n, k, DeviceFacts(), layout)
        groups = choice.split_k * -(-n // choice.tile_n)
        assert groups * choice.workgroup >= 4096, (layout, n, k, choice)
