"""`explain` without a device: every stage tells the truth about plan and graph, at any output."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections import Counter

import pytest
from rich.console import Console

from app.cli import main
from app.config import ExplainConfig
from app.explain import STAGES, run_explain
from app.tables import print_table
from engine.compile import compile_graph
from engine.graph import SOURCES, reachable
from engine.rewrite import rewrite, rewrite_traced
from models.zoo import PROGRAMS
from tests.command_line import ROOT, fails

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no device is needed")

    monkeypatch.setattr("engine.gpu.Gpu.open", refuse)


def explained(capsys: Capture, *arguments: str) -> list[str]:
    assert main(["explain", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


@pytest.mark.parametrize("model", ["train", "infer"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage(model: str, stage: str, capsys: Capture) -> None:
    lines = explained(capsys, model, "--stage", stage, "--size", "32")
    assert len(lines) >= 1 and all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("model", [name for name in PROGRAMS if "-" in name])
def test_every_workload(model: str, capsys: Capture) -> None:
    assert "the plan is sound" in "\n".join(explained(capsys, model))


def test_graph_and_gradients_list_every_node_once(capsys: Capture) -> None:
    program = PROGRAMS["train"]
    graph = program.reduced()
    lines = explained(capsys, "train", "--size", "32", "--stage", "graph")
    split = len(lines)
    lines += explained(capsys, "train", "--size", "32", "--stage", "grad")
    rows = [match for line in lines if (match := re.match(r" *%(\d+) +(\S.*\]) +(\w+)", line))]
    listed = [int(row[1]) for row in rows]
    states = {n.id for n in graph.nodes if n.op == "state"}
    assert sorted(listed) == sorted(n.id for n in reachable(graph.roots()))
    assert states <= set(listed)
    for row in rows:
        node = graph.nodes[int(row[1])]
        assert (row[2], row[3]) == (str(node.type), node.op)
    loss = graph.outputs["loss"]
    assert f"output loss = %{loss.id}: f32[1]" in lines[:split]
    for name, node in graph.gradients.items():
        assert f"gradient of {name} = %{node.id}: {node.type}" in lines[split:]


def test_a_program_without_gradients_says_so(capsys: Capture) -> None:
    assert explained(capsys, "infer", "--stage", "grad") == ["this program has no gradients"]


def test_rewriting_counts_nodes_and_launches(capsys: Capture) -> None:
    graph = PROGRAMS["infer"].build(32)
    rows = [line.split() for line in explained(capsys, "infer", "--stage", "rewrite", "--size=32")]
    launches = [len(compile_graph(graph, optimize=o).dispatches) for o in (False, True)]
    assert [row[1:3] for row in rows if row[:1] == ["launches"]] == [[*map(str, launches)]]
    graphs = [graph, rewrite(graph)]
    ops = [Counter(n.op for n in reachable(g.roots()) if n.op not in SOURCES) for g in graphs]
    start = rows.index(["op", "plain", "rewritten"])
    stop = rows.index([], start)
    table = {op: (int(old), int(new)) for op, old, new in rows[start + 1 : stop]}
    changed = {op for op in ops[0] | ops[1] if ops[0][op] != ops[1][op]}
    assert table == {op: (ops[0][op], ops[1][op]) for op in changed} and changed
    applied = Counter(step.rule for step in rewrite_traced(graph)[1])
    assert rows[stop + 1 : stop + 3] == [["Rules"], ["rule", "applied"]]
    assert {" ".join(rule): int(n) for *rule, n in rows[stop + 3 :]} == applied


def test_the_plan_lists_every_launch(capsys: Capture) -> None:
    plan = compile_graph(PROGRAMS["train"].build(32))
    *rows, last = explained(capsys, "train", "--stage", "plan", "--size", "32")[1:]
    assert len(rows) == len(plan.dispatches)
    for index, (row, d) in enumerate(zip(rows, plan.dispatches, strict=True)):
        group = sum(start <= index for start in plan.groups) - 1
        fields = row.split()
        assert fields[:3] == [str(index), str(group), d.kernel.label]
        assert fields[3] == "x".join(map(str, d.kernel.grid))
        assert float(fields[4]) == pytest.approx(d.kernel.flops / 1e6, abs=0.006)
        assert float(fields[5]) == pytest.approx(plan.binding_bytes(d) / 1e3, abs=0.06)
    assert "parameter[30] adam_m[30] adam_v[30]" in rows[-1]
    assert last.startswith(f"{len(rows)} launches") and last.endswith("the plan is sound")


def test_memory_adds_up_and_names_the_largest(capsys: Capture) -> None:
    plan = compile_graph(PROGRAMS["train"].build(224))
    lines = [line.split() for line in explained(capsys, "train", "--stage", "memory")]
    report = {row[0]: row for row in lines if len(row) > 3}
    for kind, nbytes in plan.memory_report().items():
        assert report[kind][3:5] == [f"{nbytes[k] / 1e6:.2f}" for k in ("logical", "physical")]
    assert int(report["all"][1]) == len(plan.buffers)
    assert int(report["all"][2]) == len(plan.slabs)
    largest = max(b.type.nbytes for b in plan.buffers)
    start = next(i for i, row in enumerate(lines) if row[:2] == ["Largest", "tensors"])
    assert f"{largest / 1e6:.2f}" in lines[start + 2]


@pytest.mark.parametrize("by", ["index", "label", "part"])
def test_the_source_of_a_kernel(by: str, capsys: Capture) -> None:
    plan = compile_graph(PROGRAMS["infer"].build(32))
    index = next(i for i, d in enumerate(plan.dispatches) if "layer_norm" in d.kernel.label)
    kernel = plan.dispatches[index].kernel
    wanted = {"index": str(index), "label": kernel.label, "part": "ayer_nor"}[by]
    lines = explained(capsys, "infer", "--size=32", "--stage", "wgsl", "--kernel", wanted)
    assert lines[0].startswith(f"// {kernel.label}, grid ")
    same = [i for i, d in enumerate(plan.dispatches) if d.kernel.source == kernel.source]
    assert lines[1] == f"// launches {', '.join(map(str, same))}" and index in same
    assert "\n".join(lines[2:]) == kernel.source.strip()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", "required"),
        ("nothing", "no model 'nothing': use one of train, infer"),
        ("train --size 0", "--size must be at least 1, not 0"),
        ("train --size 33", "--size 33 does not suit 'train': image sides"),
        ("train --size big", "--size"),
        ("train --stage nowhere", "nowhere"),
        ("train --stage wgsl", "--kernel"),
        ("train --kernel 3", "--stage wgsl"),
        ("infer --size 32 --stage wgsl --kernel 10000", "no launch is '10000'"),
        ("infer --size 32 --stage wgsl --kernel nope", "no launch is 'nope'"),
        ("infer --check --stage plan", "exclude each other"),
    ],
)
def test_wrong_usage(arguments: str, named: str, capsys: Capture) -> None:
    assert named in fails(capsys, 2, "explain", *arguments.split())


def test_a_terminal_gets_a_table_and_a_pipe_plain_text() -> None:
    rows = [("[bold]x", 1), ("a much longer name that no narrow terminal would show", 22)]
    texts = []
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=60, color_system=None)
        print_table(console, ("name", ">count"), rows, "Title")
        texts.append(file.getvalue())
    assert all("[bold]x" in text and text.startswith("Title\n") for text in texts)
    assert texts[1].splitlines()[1:] == [
        f"{'name':53}  count",
        f"{'[bold]x':53}      1",
        f"{rows[1][0]:53}     22",
    ]


def test_an_interactive_terminal_works() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    assert run_explain(ExplainConfig("infer", size=32), console) == 0
    assert "\x1b[" in file.getvalue() and "Memory" in file.getvalue()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As `explain train --stage plan | head -1`."""
    command = [sys.executable, "run.py", "explain", "train", "--stage", "plan"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
