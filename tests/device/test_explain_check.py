"""`explain --check`: the programs agree with the interpreter, and a difference is not hidden."""

from __future__ import annotations

import numpy as np
import pytest

from app.cli import main
from app.reference_check import Comparison, compare, random_feeds
from engine import ops
from engine.gpu import Gpu
from engine.graph import Graph
from engine.op import definition
from models.zoo import PROGRAMS

pytestmark = pytest.mark.gpu

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def one_device(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.gpu.Gpu.open", lambda *_, **__: gpu)


@pytest.mark.parametrize("model", PROGRAMS)
def test_programs_agree_with_the_interpreter(model: str, capsys: Capture) -> None:
    program = PROGRAMS[model]
    graph = program.reduced()
    assert main(["explain", model, "--check"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    names = [*graph.outputs, *(f"gradient:{name}" for name in graph.gradients)]
    assert [line.split()[0] for line in lines[2:-1]] == names
    assert all(line.endswith("  ok") for line in lines[2:-1])
    assert lines[-1] == "all tensors are within 0.0001" and err == ""


def test_a_difference_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    gelu = type(definition("gelu"))
    right = gelu.reference
    monkeypatch.setattr(gelu, "reference", lambda *arguments: right(*arguments) * 1.001)
    assert main(["explain", "infer", "--check", "--size", "16"]) == 1
    out, _ = capsys.readouterr()
    assert "WRONG" in out and "tensors differ by more than 0.0001" in out


def test_what_is_not_written_and_what_cancels(gpu: Gpu) -> None:
    """Poison shows as NaN, which is never good; a tensor of zeros is judged by its class."""
    assert not Comparison("x", (1,), float("nan")).good
    graph = Graph()
    x = graph.input("x", (64,))
    labels = graph.input("labels", (5,), "u32")
    graph.output("large", ops.affine(x, 3.0))
    graph.output("nothing", ops.sub(ops.affine(x, 1 / 3), ops.affine(ops.affine(x, 2.0), 1 / 6)))
    graph.output("labels out", ops.reshape(ops.copy(x), (8, 8)))
    feeds = random_feeds(graph, {"labels": 7})
    assert feeds["labels"].dtype == np.uint32 and feeds["labels"].max() < 7
    assert labels.type.dtype == "u32"
    results = compare(gpu, graph, feeds)
    assert all(result.good for result in results)
    nothing = next(result for result in results if result.name == "nothing")
    assert nothing.error < 1e-4
