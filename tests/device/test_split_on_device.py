"""Launches in parts: every kernel family gives the same bits, and so does learning."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import pytest
from cases import Feeds
from device_runs import start, variant

from engine import ops
from engine.autodiff import gradients
from engine.check import check_plan
from engine.compile import compile_graph
from engine.debug import first_nonfinite
from engine.gpu import Gpu
from engine.graph import Graph, Node
from engine.kernels.merged import SEPARATOR
from engine.optim import HYPER, AdamW, Optimizer, Sgd, minimize
from engine.plan import Plan
from engine.session import Session
from engine.split import split_plan
from models.nn import initial_parameters
from models.vision import training_graph

pytestmark = pytest.mark.gpu


def in_parts(plan: Plan) -> Plan:
    """Everything that has more than one workgroup in two or three parts."""
    costs = [min(2.0, prod(d.kernel.grid)) for d in plan.dispatches]
    split = split_plan(plan, costs, 1.0)
    for launch, cost in zip(split.launches(), costs, strict=True):
        assert len(launch) in ((1,) if cost == 1 else (2, 3))
    return split


def run_in_reverse(session: Session) -> None:
    """One submission per part, each launch's last part first: no order among them may matter."""
    gpu = session.gpu
    for launch in session.plan.launches():
        for index in reversed(launch):
            encoder = gpu.device.create_command_encoder()
            session.encode(encoder, index, index + 1)
            gpu.submit(encoder)


def backward(y: Node, *sources: Node) -> None:
    """Output a value and its gradients under an upstream that is an input."""
    graph = y.graph
    number = len(graph.outputs)
    graph.output(f"y {number}", y)
    upstream = graph.input(f"upstream {number}", y.shape)
    for k, grad in enumerate(gradients(y, sources, upstream)):
        graph.output(f"gradient {number} {k}", grad)


# Each family: a graph whose kernels have several workgroups on every kind of device.


def products(g: Graph) -> None:
    for label, m, k, n in (("odd", 150, 67, 70), ("even", 132, 64, 136), ("deep", 40, 513, 33)):
        a, b = g.input(f"{label} a", (m, k)), g.input(f"{label} b", (n, k))
        bias = g.input(f"{label} bias", (n,))
        g.output(label, ops.gelu(ops.linear(a, b, bias)))
    batch = ops.matmul(g.input("batch a", (5, 30, 9)), g.input("batch b", (5, 9, 70)))
    g.output("batch", batch)
    g.output("vector", ops.matmul(g.input("v", (1, 256)), g.input("matrix", (256, 600))))
    g.output("column", ops.matmul(g.input("long", (300, 130)), g.input("w", (130, 1))))


def convolutions(g: Graph) -> None:
    for label, image, out, stride in (
        ("even", (2, 17, 15, 12), 36, (2, 2)),
        ("odd", (1, 24, 23, 7), 9, (1, 1)),
    ):
        x = g.input(f"{label} x", image)
        weight = g.input(f"{label} weight", (out, 9 * image[-1]))
        bias = g.input(f"{label} bias", (out,))
        y = ops.silu(ops.conv2d(x, weight, bias, (3, 3), stride=stride, padding=(1, 1)))
        backward(y, x, weight, bias)


def attention(g: Graph) -> None:
    for label, width, causal in (("even", 16, True), ("odd", 9, False)):
        q = g.input(f"{label} q", (4, 70, width))
        k, v = (g.input(f"{label} {name}", (2, 85, width)) for name in "kv")
        backward(ops.attention(q, k, v, causal=causal), q, k, v)


def norms(g: Graph) -> None:
    x, w, b = g.input("x", (75, 300)), g.input("w", (300,)), g.input("b", (300,))
    backward(ops.layer_norm(x, w, b, eps=1e-3), x, w, b)
    y, u = g.input("y", (150, 31)), g.input("u", (31,))
    backward(ops.rms_norm(y, u, eps=1e-3), y, u)
    image = g.input("image", (1, 67, 83, 6))
    scale, shift = g.input("scale", (6,)), g.input("shift", (6,))
    backward(ops.group_norm_silu(image, scale, shift, 2, eps=1e-3), image, scale, shift)


def reductions(g: Graph) -> None:
    x = g.input("x", (130, 5, 70))
    for axis in range(3):
        g.output(f"sum {axis}", ops.reduce_sum(x, [axis]))
        g.output(f"largest {axis}", ops.reduce_max(x, [axis]))
        g.output(f"where {axis}", ops.argmin(x, axis))
    backward(ops.reduce_variance(x, [1]), x)
    backward(ops.reduce_min(x, [1]), x)


def softmaxes(g: Graph) -> None:
    x, y = g.input("x", (150, 37)), g.input("y", (70, 400))
    backward(ops.softmax(x), x)
    backward(ops.log_softmax(y), y)
    labels = g.input("labels", (150,), "u32")
    backward(ops.cross_entropy(x, labels), x)


def pointwise(g: Graph) -> None:
    x, y = g.input("x", (90, 33)), g.input("y", (33,))
    backward(ops.mul(ops.tanh(x), ops.sigmoid(y)), x, y)
    gate, up = g.input("gate", (70, 40)), g.input("up", (70, 40))
    backward(ops.swiglu(gate, up), gate, up)
    g.output("turned", ops.permute(x, (1, 0)))
    g.output("joined", ops.concat(ops.pad(x, 0, 3, 5), ops.pad(x, 0, 1, 2), 0))
    g.output("cut", ops.take(x, 1, 3, 30))


def lookups(g: Graph) -> None:
    ids, table = g.input("ids", (70,), "u32"), g.input("table", (50, 36))
    backward(ops.embedding(ids, table), table)


def pools(g: Graph) -> None:
    x = g.input("x", (2, 23, 21, 5))
    for pooled in (
        ops.max_pool2d(x, (3, 3), stride=(2, 2), padding=(1, 1)),
        ops.avg_pool2d(x, (2, 3), stride=(1, 2)),
        ops.upsample_nearest(x, (2, 3)),
        ops.upsample_bilinear(x, (2, 2)),
    ):
        backward(pooled, x)
    wide = g.input("wide", (2, 6, 5, 260))
    backward(ops.global_avg_pool(wide), wide)


FAMILIES: dict[str, tuple[Callable[[Graph], None], str]] = {
    "products": (products, "matmul_nt matmul_nn_5x"),
    "convolutions": (convolutions, "conv2d_nt conv2d_input_grad_nn_4x conv2d_weight_grad silu"),
    "attention": (attention, "attention_4x attention_grad_q attention_grad_kv attention_delta"),
    "norms": (norms, "layer_norm layer_norm_grad rms_norm_grad norm_affine_grad"),
    "reductions": (reductions, "sum max argmin put_at"),
    "softmaxes": (softmaxes, "softmax log_softmax softmax_grad row_losses cross_entropy_grad"),
    "pointwise": (pointwise, "tanh mul+silu permute concat pad slice"),
    "lookups": (lookups, "gather scatter_add links"),
    "pools": (pools, "max_pool2d max_pool2d_grad avg_pool2d avg_unpool2d upsample_bilinear"),
}
"""How each family's graph is built, and how labels begin of kernels that must be in parts."""

ON_GPUS = {
    "products": "matmul_nn_1x1x600x256_gemv matmul_nn_1x300x1x130_gemv matmul_nt_1x40x33x513_split",
    "convolutions": "matmul_sum_splits",
    "norms": "moments group_norm norm_gradient_sums",
}


def drawn(graph: Graph, rng: np.random.Generator) -> Feeds:
    """A value for every input; integers stay below every table's and class's count here."""
    feeds: Feeds = {}
    for node in graph.nodes:
        if node.op == "input" and node.type.dtype == "u32":
            feeds[node.name] = rng.integers(37, size=node.shape, dtype=np.uint32)
        elif node.op == "input":
            feeds[node.name] = rng.uniform(-1, 1, node.shape).astype(np.float32)
    return feeds


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_of(family: str, chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    build, labels = FAMILIES[family]
    graph, facts = Graph(), variant(gpu, chosen)
    build(graph)
    feeds = drawn(graph, rng)
    whole = start(gpu, graph, feeds, facts)
    whole.run()
    plan = in_parts(whole.plan)
    check_plan(plan, facts)
    cut = [d.kernel.label for d in plan.dispatches if d.kernel.whole]
    found = {*SEPARATOR.join(cut).split(SEPARATOR)}
    for wanted in f"{labels} {ON_GPUS.get(family, '') if chosen == 'gpu' else ''}".split():
        assert any(label.startswith(wanted) for label in found), (wanted, found)
    parts = Session(gpu, plan)
    parts.load(feeds)
    parts.poison()
    run_in_reverse(parts)
    for name in graph.outputs:
        want = whole.read(name)
        assert np.isfinite(want).all() and np.array_equal(parts.read(name), want), name


def test_a_part_does_its_share_and_nothing_else(gpu: Gpu, rng: np.random.Generator) -> None:
    """Without any one part just its elements stay as they were."""
    graph = Graph()
    x = graph.input("x", (100, 100))
    graph.output("y", ops.tanh(x))
    value = rng.uniform(-1, 1, (100, 100)).astype(np.float32)
    session = Session(gpu, in_parts(compile_graph(graph, gpu.facts)))
    session.write("x", value)
    session.poison()
    session.run()
    want = session.read("y")
    count = len(session.plan.dispatches)
    missing = np.zeros(want.shape, int)
    for left_out in range(count):
        session.poison()
        for first, last in ((0, left_out), (left_out + 1, count)):
            encoder = gpu.device.create_command_encoder()
            session.encode(encoder, first, last)
            gpu.submit(encoder)
        got = session.read("y")
        assert np.array_equal(got[~np.isnan(got)], want[~np.isnan(got)])
        assert np.isnan(got).any()
        missing += np.isnan(got)
    assert count > 1 and np.all(missing == 1)


def test_a_second_session_in_parts_compiles_nothing(gpu: Gpu) -> None:
    """Equal parts of equal launches share a pipeline."""
    graph = Graph()
    x = graph.input("x", (64, 128))
    graph.output("y", ops.gelu(ops.tanh(ops.matmul(x, x, transpose_b=True))))
    plan = in_parts(compile_graph(graph, gpu.facts))
    Session(gpu, plan)
    made = gpu.created["compute_pipeline"]
    Session(gpu, plan)
    assert gpu.created["compute_pipeline"] == made


# Learning


def steps(session: Session, optimizer: Optimizer, count: int) -> list[float]:
    """Losses of so many runs, each part submitted on its own."""
    losses = []
    for step in range(1, count + 1):
        session.write(HYPER, optimizer.hyper(step))
        session.poison()
        run_in_reverse(session)
        losses.append(float(session.read("loss")[0]))
    return losses


def assert_learn_alike(gpu: Gpu, plans: Sequence[Plan], optimizer: Optimizer, feeds: Feeds) -> None:
    """Losses, parameters, state and gradients of four runs are the same bits by all plans."""
    results = []
    for chosen in plans:
        check_plan(chosen, gpu.facts)
        session = Session(gpu, chosen)
        session.load(feeds)
        losses = steps(session, optimizer, 4)
        results.append((losses, session.snapshot(["parameter", "state", "gradient"])))
    (losses, want), *others = results
    assert len(set(losses)) > 1
    for got_losses, got in others:
        assert got_losses == losses
        for name, value in want.items():
            assert np.array_equal(got[name], value), name
    plan = plans[0]
    changed = [n for n in plan.names("parameter") if not np.array_equal(want[n], feeds[n])]
    assert changed == plan.names("parameter")


OPTIMIZERS = {
    "adamw": AdamW(
        1e-2, weight_decay=0.1, clip_norm=0.05, accumulate=2, multipliers={"second": 0.5}
    ),
    "sgd": Sgd(1e-2, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_over_packs(name: str, gpu: Gpu, rng: np.random.Generator) -> None:
    optimizer, graph = OPTIMIZERS[name], Graph()
    x, target = graph.input("x", (40, 70)), graph.input("target", (40, 33))
    first, second, bias = (
        graph.parameter(name, shape, lambda rng, shape: rng.uniform(-0.3, 0.3, shape))
        for name, shape in (
            ("first.weight", (70, 101)),
            ("second.weight", (33, 101)),
            ("second.bias", (33,)),
        )
    )
    y = ops.linear(ops.tanh(ops.matmul(x, first)), second, bias)
    loss = ops.mse(y, target)
    graph.output("loss", loss)
    minimize(loss, optimizer)
    feeds = {**drawn(graph, rng), **initial_parameters(graph, seed=5)}
    plan = compile_graph(graph, gpu.facts)
    updates = [d.kernel for d in plan.dispatches if d.kernel.label.startswith(name[:3])]
    assert updates and all(prod(kernel.grid) > 1 for kernel in updates)
    assert_learn_alike(gpu, [plan, in_parts(plan)], optimizer, feeds)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_the_training_program_learns_alike(
    chosen: str, gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts; on a GPU, where kernels share launches, each in a launch of its own."""
    optimizer = AdamW(2e-3, weight_decay=0.01)
    graph = training_graph(optimizer, depth=1, size=32)
    image = rng.uniform(0, 1, (32, 32, 3)).astype(np.float32)
    feeds = {**initial_parameters(graph, seed=5), "image": image}
    plan = compile_graph(graph, variant(gpu, chosen))
    if chosen == "cpu":
        other = in_parts(plan)
    else:
        monkeypatch.setattr("engine.merge.MOST_PARTS", 1)
        other = compile_graph(graph, variant(gpu, chosen))
    assert len(other.dispatches) > len(plan.dispatches)
    assert_learn_alike(gpu, [plan, other], optimizer, feeds)


def test_the_search_for_numbers_that_are_not_finite_knows_parts(
    gpu: Gpu, rng: np.random.Generator
) -> None:
    """A launch is looked at when its last part has run, and told by its first."""
    graph = Graph()
    x = graph.input("x", (100, 100))
    graph.output("y", ops.matmul(ops.affine(ops.unary("exp", x), 2.0), x))
    session = Session(gpu, in_parts(compile_graph(graph, gpu.facts, optimize=False)))
    value = rng.uniform(-1, 1, (100, 100)).astype(np.float32)
    session.write("x", value)
    session.poison()
    assert first_nonfinite(session) is None
    value[70, 3] = 88.5  # exp of it is finite, twice that is not
    session.write("x", value)
    session.poison()
    found = first_nonfinite(session)
    second = session.plan.launches()[1]
    assert len(second) > 1 and found is not None
    assert (found.launch, found.label) == (second.start, "affine")
