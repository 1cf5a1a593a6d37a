"""Matrix products by every kernel variant, on extents that no tile divides."""

import importlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import Feeds, assert_close
from device_runs import outputs, variant

from engine import ops
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.specialize import (
    MOST_PARTS_BYTES,
    TILES,
    DeviceFacts,
    MatmulChoice,
    choose_matmul,
)

pytestmark = pytest.mark.gpu

LAYOUTS = list(itertools.product((False, True), repeat=2))
Shape = tuple[int, int, int, int]
"""batch (0: plain matrices), m, n, k"""


def add_product(
    graph: Graph, feeds: Feeds, shape: Shape, layout: tuple[bool, bool], rng: np.random.Generator
) -> str:
    """Append gelu(a b + bias), which becomes one kernel with its epilogue; returns its label."""
    batch, m, n, k = shape
    lead = (batch,) if batch else ()
    label = f"{shape} {layout}"
    a = graph.input(f"{label}.a", (*lead, k, m) if layout[0] else (*lead, m, k))
    b = graph.input(f"{label}.b", (*lead, n, k) if layout[1] else (*lead, k, n))
    bias = graph.input(f"{label}.bias", (n,))
    for node in (a, b, bias):
        feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)
    product = ops.matmul(a, b, transpose_a=layout[0], transpose_b=layout[1])
    graph.output(label, ops.gelu(ops.add(product, bias)))
    return label


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts) -> None:
    got = outputs(gpu, graph, feeds, facts)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        # Sums of k products in f32: 1e-5 leaves room for k = 1100.
        assert_close(got[name], value, 1e-5, name)


DIRECT = [MatmulChoice("direct", m, n, 4, m, n) for m in (4, 8) for n in (4, 8)]
SPLIT = replace(TILES[-1], split_k=3)
# One shape per layout: primes, ones, and multiples of 4 beside odd extents.
SHAPES: dict[MatmulChoice, list[Shape]] = {
    **{d: [(0, 1, 1, 1), (0, 13, 20, 37), (2, 7, 9, 5), (0, 16, 8, 12)] for d in DIRECT},
    TILES[0]: [(0, 131, 67, 17), (0, 127, 68, 12), (2, 5, 131, 3), (0, 132, 1, 33)],
    TILES[1]: [(0, 67, 61, 17), (0, 1, 68, 20), (2, 65, 3, 5), (0, 68, 64, 33)],
    TILES[2]: [(0, 65, 67, 35), (0, 36, 1, 7), (2, 5, 66, 33), (0, 68, 64, 65)],
    TILES[3]: [(0, 33, 65, 35), (0, 36, 1, 7), (2, 5, 66, 33), (0, 8, 68, 64)],
    TILES[4]: [(0, 33, 31, 35), (0, 36, 1, 7), (2, 5, 37, 33), (0, 8, 36, 64)],
    # The second has fewer steps along k than splits.
    SPLIT: [(0, 33, 31, 131), (0, 7, 36, 64), (0, 1, 5, 1100), (0, 36, 40, 97)],
}
EXACT: dict[MatmulChoice, Shape] = {
    TILES[0]: (0, 128, 128, 16),
    TILES[1]: (0, 64, 64, 32),
    SPLIT: (0, 32, 64, 96),
}


def name_of(choice: MatmulChoice) -> str:
    return f"{choice.variant} {choice.tile_m}x{choice.tile_n}x{choice.tile_k}/{choice.split_k}"


@pytest.mark.parametrize("choice", SHAPES, ids=name_of)
def test_variant(
    choice: MatmulChoice, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package's attribute of this name is the function.
    module = importlib.import_module("engine.ops.factors")
    monkeypatch.setattr(module, "choose_matmul", lambda *_: choice)
    graph, feeds = Graph(), {}
    for shape, layout in zip(SHAPES[choice], LAYOUTS, strict=True):
        add_product(graph, feeds, shape, layout, rng)
    if choice in EXACT:
        add_product(graph, feeds, EXACT[choice], (False, True), rng)
    compare(gpu, graph, feeds, gpu.facts)


AWKWARD: list[Shape] = [(0, 17, 3, 1), (0, 1, 65, 513), (3, 6, 31, 2), (97, 5, 3, 7)]


@pytest.mark.parametrize("chosen", ["cpu", "gpu", "small"])
def test_awkward_shapes_by_the_devices_own_choice(
    chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    facts = variant(gpu, chosen)
    graph, feeds = Graph(), {}
    for shape, layout in zip(AWKWARD, LAYOUTS, strict=True):
        add_product(graph, feeds, shape, layout, rng)
    if chosen != "cpu":
        assert choose_matmul(*(max(1, extent) for extent in AWKWARD[1]), facts).split_k > 1
    compare(gpu, graph, feeds, facts)


@pytest.mark.parametrize("invocations, shared", [(256, 16384), (64, 16384), (1024, 65536)])
def test_choices_fit_the_device(invocations: int, shared: int) -> None:
    facts = DeviceFacts(max_invocations=invocations, max_shared_bytes=shared)
    for m, n, k in itertools.product((1, 7, 200, 4096), repeat=3):
        choice = choose_matmul(1, m, n, k, facts)
        assert choice.workgroup <= invocations and choice.shared_bytes <= shared
        assert choice.tile_m % choice.thread_m == choice.tile_n % choice.thread_n == 0
        assert choice.split_k == 1 or (choice.split_k - 1) * choice.tile_k < k
        assert 4 * choice.split_k * m * n <= max(MOST_PARTS_BYTES, 4 * m * n)


def test_a_large_device_is_kept_busy() -> None:
    """Choices at the extremes, where the best one is not a matter of measuring."""
    facts = DeviceFacts(max_invocations=1024, max_shared_bytes=49152)
    # Workgroups abound: the tiles that read least per product, whole.
    big = choose_matmul(1, 4096, 4096, 1024, facts, "nt")
    assert big.tile_m * big.tile_n >= 64 * 64 and big.split_k == 1
    # A small result of a long sum: enough parts for a device of 100 multiprocessors.
    for m, n, k in ((64, 576, 12544), (64, 147, 50176), (128, 576, 49152)):
        choice = choose_matmul(1, m, n, k, facts)
        tiles = -(-m // choice.tile_m) * -(-n // choice.tile_n)
        assert tiles * choice.split_k >= 100, (m, n, k, choice)
    # Too little to share.
    assert choose_matmul(1, 32, 32, 32, facts, "nn").split_k == 1
    assert choose_matmul(12, 64, 64, 4096, facts, "nn").split_k == 1
