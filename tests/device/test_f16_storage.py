"""Weights in memory as f16: every op that reads them, whole networks, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cases import assert_close, draw, relative_l2
from device_runs import variant
from workload_runs import random_inputs, random_parameters, stored

from app.generate.generator import Generator
from engine import ops
from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import PlanError
from engine.gpu import Gpu
from engine.graph import Graph, TensorType
from engine.interpret import interpret
from engine.op import Op, Sample, definition, definitions
from engine.session import Session
from models.nn import initial_parameters
from models.smollm2_cached import continuation
from models.zoo import WORKLOADS

pytestmark = pytest.mark.gpu

GATE = 0.01
"""Relative L2 of a network's output that rounded weights may cost."""


READERS = [name for name, op in definitions().items() if type(op).halves is not Op.halves]


def able(op: str, sample: Sample) -> Sequence[int]:
    """Operands of a sample that may be f16."""
    types = [
        TensorType(shape, "u32" if k in sample.integers else "f32")
        for k, shape in enumerate(sample.shapes)
    ]
    return definition(op).halves(types, sample.attrs)


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_every_op_that_reads_f16(chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    """Its samples against float64 of the rounded weights; the last where kernels compile long."""
    graph, feeds, halves = Graph(), {}, set()
    for op in READERS:
        samples = [sample for sample in definition(op).samples() if able(op, sample)]
        for number, sample in enumerate(samples if chosen == "cpu" else samples[-1:]):
            nodes = []
            for k, value in enumerate(draw(sample, rng)):
                name = f"{op} {number}.{k}"
                feeds[name] = value
                if k in able(op, sample):
                    nodes.append(graph.parameter(name, value.shape, zeros))
                    halves.add(name)
                else:
                    dtype = "u32" if k in sample.integers else "f32"
                    nodes.append(graph.input(name, value.shape, dtype))
            graph.output(f"{op} {number}", graph.add(op, nodes, **sample.attrs))
    assert {name.split()[0] for name in graph.outputs} == set(READERS)
    facts = variant(gpu, chosen)
    plan = compile_graph(graph, facts, storage="f16", optimize=False)
    check_plan(plan, facts)
    assert {name for name, type in plan.types.items() if type.dtype == "f16"} == halves
    session = Session(gpu, plan)
    session.load(feeds)
    session.poison()
    session.run()
    rounded = {n: v.astype(np.float16) if n in halves else v for n, v in feeds.items()}
    for name in halves:
        assert np.array_equal(session.read(name), rounded[name])
    want = interpret(graph, rounded, [*graph.outputs.values()])
    for name, value in zip(graph.outputs, want, strict=True):
        assert_close(session.read(name), value, 1e-5, name)


@pytest.mark.parametrize(("name", "chosen"), [("smollm2", "gpu"), ("whisper", "cpu")])
def test_networks_keep_the_gate(name: str, chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    workload, facts = WORKLOADS[name], variant(gpu, chosen)
    network = workload.inference(workload.reduced)
    feeds = stored(network, random_parameters(network, rng))
    feeds |= random_inputs(workload, 37, rng)
    results, nbytes = {}, {}
    for storage in ("f32", "f16"):
        plan = compile_graph(network.graph, facts, storage=storage)
        check_plan(plan, facts)
        session = Session(gpu, plan)
        session.load({n: value for n, value in feeds.items() if n in plan.tensors})
        session.poison()
        session.run()
        results[storage] = session.read("output")
        nbytes[storage] = plan.memory_report()["parameter"]["logical"]
    # Rounded to 11 bits: not the same, and not far.
    assert 1e-6 < relative_l2(results["f16"], results["f32"]) < GATE
    assert nbytes["f16"] < 0.55 * nbytes["f32"]


def test_a_text_continued_with_f16(gpu: Gpu, rng: np.random.Generator) -> None:
    """Both programs share the rounded weights; one matrix does not fit f16 and stays."""
    sizes = WORKLOADS["smollm2"].reduced
    graph = continuation(sizes, 2, 16).graph
    values = {
        name: rng.normal("norm" in name, 0.2, value.shape).astype(np.float32)
        for name, value in initial_parameters(graph, 0).items()
    }
    large = next(name for name in values if name.endswith("down_proj.weight"))
    values[large][0, 0] = 7e4
    ids = rng.integers(sizes.vocabulary, size=9).tolist()
    found = []
    for storage in ("f32", "f16"):
        made = Generator(gpu, sizes, values, 16, 4, storage=storage)
        logits = [made.extend(ids), *(made.extend([token]) for token in ids[:3])]
        found.append(np.stack(logits))
    assert 1e-6 < relative_l2(found[1], found[0]) < GATE
    types = made._single.plan.types
    assert made.kept == (large,) and types[large].dtype == "f32"
    assert (
        sum(types[name].dtype == "f16" for name in values)
        == sum(v.ndim == 2 for v in values.values()) - 1
    )


@pytest.mark.parametrize("value", [7e4, 1e-7, np.nan])
def test_values_that_f16_cannot_hold_are_refused(value: float, gpu: Gpu) -> None:
    graph = Graph()
    weight = graph.parameter("weight", (3, 4), zeros)
    graph.output("y", ops.linear(graph.input("x", (1, 4)), weight))
    session = Session(gpu, compile_graph(graph, gpu.facts, storage="f16"))
    with pytest.raises(PlanError, match=r"'weight' has values .* f16"):
        session.write("weight", np.full((3, 4), value, np.float32))
    session.write("weight", np.full((3, 4), 65504, np.float32))
    assert session.read("weight").max() == 65504
