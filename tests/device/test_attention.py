"""Attention and its gradients by every kernel, on extents that no tile divides."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from bounds import watching
from cases import Feeds, assert_close, operands
from device_runs import kernel_labels, outputs, start, variant

from engine import ops
from engine.autodiff import gradients
from engine.compile import compile_graph
from engine.errors import GpuError
from engine.gpu import Gpu
from engine.graph import Graph
from engine.interpret import interpret
from engine.kernels import attention as kernels
from engine.kernels.attention import AttentionShape
from engine.op import Sample, definition
from engine.specialize import DeviceFacts, MatmulChoice
from engine.specialize_attention import (
    FEW_NARROW,
    FEW_QUERIES,
    FEW_ROWS,
    LITTLE_MEMORY,
    MANY_ROWS,
    NARROW,
    AttentionChoice,
    choose_attention,
)

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Case:
    """Extents of one attention; `low` and `high` bound its operands."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    scale: float | None = None
    low: float = -1.0
    high: float = 1.0


def add(
    graph: Graph, feeds: Feeds, case: Case, rng: np.random.Generator, *, backward: bool = True
) -> None:
    """Append the attention, its log-sum-exp and its gradients under an uneven upstream."""
    label, kv = str(case), (case.kv_heads, case.keys, case.width)
    sources = [
        graph.input(f"{label}.{name}", shape)
        for name, shape in (("q", (case.heads, case.queries, case.width)), ("k", kv), ("v", kv))
    ]
    y = ops.attention(*sources, causal=case.causal, scale=case.scale)
    upstream = graph.input(f"{label}.g", y.shape)
    for node in (*sources, upstream):
        feeds[node.name] = rng.uniform(case.low, case.high, node.shape).astype(np.float32)
    graph.output(f"{label} y", y)
    graph.output(f"{label} lse", ops.extra(y, 0))
    if not backward:
        return
    for name, grad in zip("qkv", gradients(y, sources, upstream), strict=True):
        graph.output(f"{label} d{name}", grad)


def compare(gpu: Gpu, graph: Graph, feeds: Feeds, facts: DeviceFacts) -> None:
    got = outputs(gpu, graph, feeds, facts)
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        assert_close(got[name], value, 1e-5, name)


AWKWARD = [
    Case(1, 1, 1, 2, 1),
    Case(1, 1, 37, 37, 3, causal=True),
    Case(2, 1, 1, 67, 64),
    Case(6, 2, 35, 41, 20, causal=True, scale=0.7),
    Case(3, 3, 13, 5, 80),
]


@pytest.mark.parametrize("chosen", ["cpu", "gpu", "small"])
def test_awkward_extents_by_the_devices_own_choice(
    chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    graph, feeds = Graph(), {}
    for case in AWKWARD:
        # Unrolled gradients of wide heads take long to compile on a CPU device.
        add(graph, feeds, case, rng, backward=chosen != "cpu" or case.width <= 20)
    compare(gpu, graph, feeds, variant(gpu, chosen))


# Whole and partial blocks; rows kept, staged at once, and in equal and unequal slices; parts that
# see nothing; rows whose elements no vec4 divides.
BY_CHOICE = {
    replace(MANY_ROWS, slice=64, splits=2): [Case(2, 1, 64, 65, 64)],
    replace(MANY_ROWS, slice=32): [Case(2, 2, 35, 67, 80, causal=True)],
    replace(FEW_ROWS, slice=128, splits=4): [Case(2, 1, 33, 170, 128, causal=True)],
    replace(FEW_ROWS, slice=64, resident=True, splits=2): [Case(6, 2, 9, 64, 62)],
    replace(FEW_QUERIES, slice=64, resident=True): [Case(3, 1, 9, 70, 48)],
    replace(NARROW, slice=64, resident=True, splits=8): [Case(1, 1, 40, 257, 30, causal=True)],
    replace(FEW_NARROW, slice=64, splits=4): [Case(4, 2, 33, 70, 20, causal=True)],
    replace(LITTLE_MEMORY, splits=2): [Case(4, 2, 31, 33, 40), Case(1, 1, 33, 33, 128)],
    AttentionChoice("direct", 8, 1): [Case(2, 1, 7, 9, 5, causal=True)],
}


@pytest.mark.parametrize(
    "choice", BY_CHOICE, ids=lambda c: f"{c.rows}x{c.columns}x{c.slice}/{c.lanes} {c.splits}"
)
def test_every_choice(
    choice: AttentionChoice, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.ops.stream.choose_attention", lambda *_: choice)
    graph, feeds = Graph(), {}
    for case in BY_CHOICE[choice]:
        add(graph, feeds, case, rng)
    try:
        compare(gpu, graph, feeds, gpu.facts)
    except GpuError as error:
        if "total use of workgroup storage" not in str(error):
            raise
        pytest.skip("this device has too little shared memory for the choice")


def test_weights_kept_for_the_gradient_of_queries(
    gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared heads, parts of queries and of keys, rows that no tile or vec4 divides; dense and in
    matrices of tokens.
    """
    monkeypatch.setattr("engine.specialize_attention.LEAST_KEPT_PAIRS", 1)
    streamed = replace(FEW_NARROW, slice=32, splits=2)
    for module in ("stream", "attention_gradients"):
        monkeypatch.setattr(f"engine.ops.{module}.choose_attention", lambda *_: streamed)
    tile = MatmulChoice("tiled", 32, 32, 8, 4, 4)

    def choose(batch: int, m: int, n: int, k: int, facts: DeviceFacts) -> MatmulChoice:
        return replace(tile, split_k=3 if n in (4, 8) else 1)

    monkeypatch.setattr("engine.ops.attention_gradients.choose_matmul", choose)
    cases = [
        ("attention_grad", Sample((q, k, k, q, q[:2], q), {"causal": False, "scale": 0.2}))
        for q, k in (((2, 33, 20), (1, 66, 20)), ((2, 36, 8), (2, 64, 8)))
    ]
    *_, shared, images = definition("packed_attention_grad").samples()
    keys = replace(images, shapes=(images.shapes[0], (80, 8), (80, 8), *images.shapes[3:]))
    cases += [("packed_attention_grad", sample) for sample in (shared, keys)]
    graph, feeds = Graph(), Feeds()
    for number, (op, sample) in enumerate(cases):
        given = operands(graph, f"case {number}", sample, feeds, rng)
        y = graph.add(op, given, **sample.attrs)
        for k, node in enumerate((y, ops.extra(y, 0), ops.extra(y, 1))):
            graph.output(f"case {number} d{'qkv'[k]}", node)
    facts = variant(gpu, "gpu")
    facts = replace(facts, max_storage_buffers=facts.max_storage_buffers - 1)
    labels = kernel_labels(compile_graph(graph, facts))
    assert sum(label.startswith("attention_grad_q_product") for label in labels) == 4
    assert not any(label.startswith("attention_grad_q_2x") for label in labels)
    with watching(gpu) as watched:
        compare(gpu, graph, feeds, facts)
        assert watched.left() == []


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_large_scores_saturate_instead_of_overflowing(
    chosen: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    """Scores of hundreds: almost every weight is 0 or 1, and exp alone would overflow."""
    case = Case(2, 1, 9, 37, 4, causal=True, scale=100.0)
    graph, feeds = Graph(), {}
    add(graph, feeds, case, rng)
    # On a grid of eighths, scores are exact in f32.
    feeds = {name: np.round(8 * value) / 8 for name, value in feeds.items()}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    (lse,) = (node for name, node in graph.outputs.items() if name.endswith("lse"))
    assert np.abs(interpret(graph, feeds, [lse])[0]).max() > 150
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))
    want = interpret(graph, feeds, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        # An error of 1e-7 in an lse of 200 is one of 2e-5 in the weights.
        assert_close(got[name], value, 5e-5, name)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_runs_are_bit_equal(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    graph, feeds = Graph(), {}
    add(graph, feeds, Case(4, 2, 35, 131, 20), rng)
    first, second = (outputs(gpu, graph, feeds, variant(gpu, chosen)) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_more_heads_than_one_dimension_of_workgroups(chosen: str, gpu: Gpu) -> None:
    heads = 65535 + 4
    graph = Graph()
    q, k = graph.input("q", (heads, 1, 1)), graph.input("k", (heads, 2, 1))
    v = graph.input("v", (heads, 2, 1))
    graph.output("y", ops.attention(q, k, v))
    steps = np.linspace(-4, 4, 2 * heads, dtype=np.float32).reshape(heads, 2, 1)
    feeds = {"q": steps[:, :1], "k": steps[::-1], "v": steps}
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))["y"]
    assert_close(got, interpret(graph, feeds, [graph.outputs["y"]])[0], 1e-6)


@pytest.mark.parametrize("optimize", [True, False])
def test_two_readers_of_a_further_result_each_have_it(optimize: bool, gpu: Gpu) -> None:
    graph = Graph()
    x = graph.input("x", (1, 3, 4))
    y = ops.attention(x, x, x)
    graph.output("lse", ops.extra(y, 0))
    graph.output("again", ops.extra(y, 0))
    graph.output("doubled", ops.affine(ops.extra(y, 0), 2.0))
    value = np.arange(12, dtype=np.float32).reshape(1, 3, 4) / 8
    got = outputs(gpu, graph, {"x": value}, optimize=optimize)
    want = interpret(graph, {"x": value}, [graph.outputs["lse"]])[0]
    for name, factor in (("lse", 1), ("again", 1), ("doubled", 2)):
        assert_close(got[name], factor * want, 1e-6, name)


def test_gradients_that_are_further_results_keep_storage_of_their_own(gpu: Gpu) -> None:
    """Both producers are the same expression, and merge."""
    graph = Graph()
    x = graph.input("x", (1, 3, 4))
    y = ops.attention(x, x, x)
    for name in "ab":
        graph.parameter(name, x.shape, lambda rng, shape: np.ones(shape))
        grad = graph.add("attention_grad", [x, x, x, y, ops.extra(y, 0), x], **y.attrs)
        graph.gradients[name] = ops.extra(grad, 1)
    value = np.arange(12, dtype=np.float32).reshape(1, 3, 4) / 8
    session = start(gpu, graph, {"x": value}, gpu.facts)
    session.run()
    (want,) = interpret(graph, {"x": value}, [graph.gradients["a"]])
    for name in "ab":
        assert_close(session.read(f"gradient:{name}"), want, 1e-5, name)


def written(graph: Graph, kernel: str) -> list[int]:
    """How many buffers each launch of a kernel writes."""
    plan = compile_graph(graph, DeviceFacts(), optimize=False)
    return [len(d.writes) for d in plan.dispatches if d.kernel.label.startswith(kernel)]


def test_further_results_that_nothing_reads_cost_nothing() -> None:
    graph = Graph()
    q, k = graph.input("q", (2, 5, 8)), graph.input("k", (1, 7, 8))
    y = ops.attention(q, k, k)
    graph.output("y", y)
    assert written(graph, "attention_2x") == written(graph, "attention") == [1]
    grad_q, grad_k = gradients(y, [q, k], q)
    graph.output("dq", grad_q)
    assert written(graph, "attention_2x") == [2]
    assert written(graph, "attention_grad_q") == [1] and not written(graph, "attention_grad_kv")
    graph.output("dk", grad_k)
    assert written(graph, "attention_grad_kv") == [2]


@pytest.mark.parametrize("shared", [16384, 32768, 49152])
@pytest.mark.parametrize("invocations", [64, 256])
def test_choices_fit_the_device(invocations: int, shared: int) -> None:
    facts = DeviceFacts(max_invocations=invocations, max_shared_bytes=shared)
    shapes = (
        AttentionShape(heads, 1, rows, rows, width, causal=True, scale=1.0)
        for heads, rows in ((1, 1), (6, 201), (6, 1500), (15, 50))
        for width in (5, 32, 64, 80, 100, 128)
    )
    for shape in shapes:
        made = (kernels.grad_queries(shape), kernels.grad_keys(shape))
        for program in (kernels.attention(shape, lse=True), *made):
            choice = choose_attention(program.key, facts)
            source = kernels.kernel(program, choice).source
            arrays = re.findall(r"<workgroup> \w+: array<vec4<f32>, (\d+)>", source)
            used = 16 * sum(int(size) for size in arrays)
            assert used <= choice.shared_bytes(shape.width, program.key.owned) <= shared
            assert choice.workgroup <= invocations
