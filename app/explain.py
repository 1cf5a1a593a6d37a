"""The `explain` command: what the compiler makes of a program, stage by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from rich.console import Console

from app.config import ExplainConfig, UsageError
from app.tables import print_table, say, to_reader
from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import GraphError
from engine.graph import SOURCES, Graph, Node, reachable
from engine.implementations import Choice
from engine.op import definition
from engine.plan import Dispatch, Plan
from engine.rewrite import rewrite_traced
from models.zoo import PROGRAMS, Program

SHOWN_OPERANDS = 8
TOP_BUFFERS = 12


def run_explain(config: ExplainConfig, console: Console | None = None) -> int:
    """Print; 0, or 1 when --check found a difference. Raises UsageError and EngineError."""
    config.check_usage()
    if config.model not in PROGRAMS:
        known = ", ".join(PROGRAMS)
        raise UsageError(f"there is no model '{config.model}': use one of {known}")
    console = console or Console()
    program = PROGRAMS[config.model]
    size = config.size or program.size
    try:
        reduced = config.check and config.size is None
        graph = program.reduced() if reduced else program.build(size)
    except (ValueError, GraphError) as error:
        raise UsageError(f"--size {size} does not suit '{config.model}': {error}") from error
    with to_reader(console):
        if config.check:
            return _check(console, graph, program, config.gpu)
        stage = STAGES.get(config.stage)
        if stage is None:
            _print_wgsl(console, compile_graph(graph), config.kernel or "")
        else:
            stage(console, graph)
    return 0


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f}"


# Graph


def _parts(graph: Graph) -> tuple[list[Node], list[Node], list[Node]]:
    """Nodes in order: sources and forward pass, gradients, updates."""
    forward = set(reachable(graph.outputs.values()))
    grads = set(reachable(graph.gradients.values())) - forward
    rest = set(reachable(graph.roots())) - forward - grads
    backward = {node for node in grads if node.op not in SOURCES or node.op == "constant"}
    forward |= {node for node in grads - backward if node.op != "state"}
    return tuple(sorted(part, key=lambda n: n.id) for part in (forward, backward, rest))  # type: ignore[return-value]


def _node_row(node: Node) -> tuple[str, ...]:
    operands = " ".join(f"%{value.id}" for value in node.inputs[:SHOWN_OPERANDS])
    if len(node.inputs) > SHOWN_OPERANDS:
        operands += f" and {len(node.inputs) - SHOWN_OPERANDS} more"
    shown = [_attribute(key, value) for key, value in node.attrs.items()]
    return f"%{node.id}", str(node.type), node.op, operands, " ".join(filter(None, shown))


def _attribute(key: str, value: object) -> str:
    if key == "name":
        return str(value)
    if key == "steps" and isinstance(value, tuple):
        return "+".join(str(step[0]) for step in value)
    if isinstance(value, np.ndarray) or value in (False, "", None):
        return ""
    return key if value is True else f"{key}={value}".replace(" ", "")


NODE_COLUMNS = (">node", "type", "op", "operands", "name or attributes")


def _print_graph(console: Console, graph: Graph) -> None:
    forward, _, _ = _parts(graph)
    print_table(console, NODE_COLUMNS, map(_node_row, forward))
    for name, node in graph.outputs.items():
        say(console, f"output {name} = %{node.id}: {node.type}")


def _print_gradients(console: Console, graph: Graph) -> None:
    _, backward, updates = _parts(graph)
    if not backward:
        say(console, "this program has no gradients")
        return
    print_table(console, NODE_COLUMNS, map(_node_row, [*backward, *updates]))
    for name, node in graph.gradients.items():
        say(console, f"gradient of {name} = %{node.id}: {node.type}")


# Rewriting


def _print_rewriting(console: Console, graph: Graph) -> None:
    rewritten, trace = rewrite_traced(graph)
    before, after = reachable(graph.roots()), reachable(rewritten.roots())
    plain, best = compile_graph(graph, optimize=False), compile_graph(graph)

    def totals(nodes: Sequence[Node], plan: Plan) -> Iterator[tuple[str, int | float]]:
        yield "nodes", sum(node.op not in SOURCES for node in nodes)
        yield "launches", len(plan.dispatches)
        yield "barrier groups", len(plan.groups)
        yield "MB bound by launches", round(sum(map(plan.binding_bytes, plan.dispatches)) / 1e6, 1)
        yield "MB of transients", round(_physical(plan, "transient") / 1e6, 1)

    rows = [
        (what, old, new, f"{_less(old, new)} %")
        for (what, old), (_, new) in zip(totals(before, plain), totals(after, best), strict=True)
    ]
    print_table(console, ("", ">plain", ">rewritten", ">less"), rows, "Rewriting")
    counts = [Counter(n.op for n in nodes if n.op not in SOURCES) for nodes in (before, after)]
    changed = sorted(op for op in counts[0] | counts[1] if counts[0][op] != counts[1][op])
    if changed:
        rows_by_op = [(op, counts[0][op], counts[1][op]) for op in changed]
        print_table(console, ("op", ">plain", ">rewritten"), rows_by_op, "\nNodes by op")
    applied = Counter(step.rule for step in trace)
    if applied:
        print_table(console, ("rule", ">applied"), applied.most_common(), "\nRules")


def _physical(plan: Plan, kind: str) -> int:
    return sum(slab.nbytes for slab in plan.slabs if slab.kind == kind)


def _less(old: float, new: float) -> int:
    """What `new` saves of `old`, in percent."""
    return round(100 * (1 - new / old)) if old else 0


# Plan


def _print_plan(console: Console, graph: Graph) -> None:
    plan = compile_graph(graph)
    check_plan(plan)
    groups = [
        number
        for number, (first, last) in enumerate(pairwise([*plan.groups, len(plan.dispatches)]))
        for _ in range(first, last)
    ]
    rows = [
        (
            index,
            group,
            d.kernel.label,
            "x".join(map(str, d.kernel.grid)),
            f"{d.kernel.flops / 1e6:.2f}",
            f"{plan.binding_bytes(d) / 1e3:.1f}",
            _bindings(plan, d),
        )
        for index, (group, d) in enumerate(zip(groups, plan.dispatches, strict=True))
    ]
    columns = (">launch", ">group", "kernel", ">grid", ">MFLOP", ">KB", "bindings")
    print_table(console, columns, rows)
    say(console, _plan_line(plan))


def _plan_line(plan: Plan) -> str:
    flops = sum(d.kernel.flops for d in plan.dispatches)
    nbytes = sum(map(plan.binding_bytes, plan.dispatches))
    kernels = len({d.kernel.source for d in plan.dispatches})
    return (
        f"{len(plan.dispatches)} launches of {kernels} kernels in {len(plan.groups)} barrier "
        f"groups: {flops / 1e9:.2f} GFLOP, {nbytes / 1e6:.1f} MB bound; the plan is sound"
    )


def _bindings(plan: Plan, dispatch: Dispatch) -> str:
    def show(ids: tuple[int, ...]) -> str:
        first = plan.buffers[ids[0]]
        if len(ids) > 1:
            return f"{first.pack}[{len(ids)}]"
        return first.name or f"t{first.id}"

    reads, writes = (" ".join(map(show, b)) for b in (dispatch.reads, dispatch.writes))
    return f"{reads} -> {writes}".strip()


# Memory


def _print_memory(console: Console, graph: Graph) -> None:
    plan = compile_graph(graph)
    _print_memory_classes(console, plan)
    written: dict[int, str] = {}
    for d in plan.dispatches:
        for b in sorted(d.write_ids()):
            written.setdefault(b, d.kernel.label)
    largest = sorted(plan.buffers, key=lambda b: (-b.type.nbytes, b.id))[:TOP_BUFFERS]
    rows = [
        (
            b.name or f"t{b.id} of {written[b.id]}",
            b.kind,
            b.type,
            _megabytes(b.type.nbytes),
            f"{plan.placements[b.id].slab}+{plan.placements[b.id].offset}",
        )
        for b in largest
    ]
    columns = ("tensor", "class", "type", ">MB", ">slab")
    print_table(console, columns, rows, "\nLargest tensors")


def _print_memory_classes(console: Console, plan: Plan) -> None:
    report = plan.memory_report()
    tensors = Counter(b.kind for b in plan.buffers)
    slabs = Counter(s.kind for s in plan.slabs)
    total = {k: sum(row[k] for row in report.values()) for k in ("logical", "physical")}
    counted = {**report, "all": total}
    rows = [
        (
            kind,
            tensors[kind] if kind in report else len(plan.buffers),
            slabs[kind] if kind in report else len(plan.slabs),
            _megabytes(row["logical"]),
            _megabytes(row["physical"]),
            # Only transients share memory; the others have padding to lose.
            f"{_less(row['logical'], row['physical'])} %" if kind in ("transient", "all") else "",
        )
        for kind, row in counted.items()
    ]
    columns = ("class", ">tensors", ">slabs", ">logical MB", ">physical MB", ">saved")
    print_table(console, columns, rows, "Memory")


# Everything, kernels, check


def _print_all(console: Console, graph: Graph) -> None:
    forward, backward, updates = _parts(graph)
    computed = [sum(n.op not in SOURCES for n in part) for part in (forward, backward, updates)]
    parameters = sum(p.type.size for p in graph.parameters())
    trained = sum(p.type.size for p in graph.parameters(trainable=True))
    say(console, f"{computed[0]} forward nodes, {computed[1]} for gradients, {computed[2]} updates")
    say(console, f"{parameters / 1e6:.2f} M parameters, {trained / 1e6:.2f} M of them trainable")
    views = sum(n.op not in SOURCES and definition(n.op).view for n in forward + backward)
    say(console, f"{views} of the nodes are views and cost nothing\n")
    _print_rewriting(console, graph)
    plan = compile_graph(graph)
    check_plan(plan)
    say(console, f"\n{_plan_line(plan)}\n")
    _print_memory_classes(console, plan)


def _print_wgsl(console: Console, plan: Plan, wanted: str) -> None:
    labels = [d.kernel.label for d in plan.dispatches]
    if wanted.isdecimal():
        found = [int(wanted)] if int(wanted) < len(labels) else []
    else:
        found = [i for i, label in enumerate(labels) if label == wanted]
        found = found or [i for i, label in enumerate(labels) if wanted in label]
    if not found:
        raise UsageError(
            f"no launch is '{wanted}': give an index below {len(labels)} or a label of --stage plan"
        )
    kernel = plan.dispatches[found[0]].kernel
    users = [i for i, d in enumerate(plan.dispatches) if d.kernel.source == kernel.source]
    say(console, f"// {kernel.label}, grid {'x'.join(map(str, kernel.grid))}")
    say(console, f"// launches {', '.join(map(str, users))}")
    say(console, kernel.source.strip())


def _check(console: Console, graph: Graph, program: Program, choice: Choice) -> int:
    from app.reference_check import TOLERANCE, compare, random_feeds
    from engine.gpu import Gpu

    gpu = Gpu.open(choice)
    say(console, f"adapter: {gpu.name}")
    results = compare(gpu, graph, random_feeds(graph, program.below))
    rows = [(r.name, list(r.shape), f"{r.error:.1e}", "ok" if r.good else "WRONG") for r in results]
    print_table(console, ("tensor", "shape", ">relative L2", ""), rows)
    wrong = sum(not r.good for r in results)
    verdict = f"{wrong} of {len(results)} tensors differ by" if wrong else "all tensors are within"
    say(console, f"{verdict}{' more than' if wrong else ''} {TOLERANCE:g}")
    return 1 if wrong else 0


STAGES: dict[str, Callable[[Console, Graph], None]] = {
    "all": _print_all,
    "graph": _print_graph,
    "grad": _print_gradients,
    "rewrite": _print_rewriting,
    "plan": _print_plan,
    "memory": _print_memory,
}
