"""What a benchmark says, as tables: for the terminal, as markdown and as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.bench.cells import BAD, GOOD, Cell, Runs, timed_modes
from app.bench.profiles import HEADLINES, profiles
from app.bench.publish import COMPILED, allocated
from app.bench.record import Phase, RunRecord
from app.report.page import Page, Table
from app.report.text import UNKNOWN, number
from models.zoo import WORKLOADS


@dataclass
class Bench:
    """All that was found out so far."""

    reference: str
    cells: list[Cell] = field(default_factory=list)
    runs: list[Runs] = field(default_factory=list)
    cached: list[RunRecord] = field(default_factory=list)
    """Of engine processes that only compiled, with the caches of the ones before."""
    installed: dict[str, int | None] = field(default_factory=dict)
    """Bytes of what runs networks, by runner."""

    def engine(self) -> Iterator[RunRecord]:
        """The engine's first process of each workload."""
        return (r.first for r in self.runs if r.first.runner == "engine")

    def other(self, workload: str) -> RunRecord | None:
        """The reference's first process on a workload."""
        found = (r.first for r in self.runs if r.first.runner == self.reference)
        return next((r for r in found if r.workload == workload), None)

    def broken(self) -> list[str]:
        """Errors of runners, a line each; a job that was skipped is none."""
        records = [record for runs in self.runs for record in runs.records] + self.cached
        return [
            f"{record.runner}, {record.workload}: {record.outcome}"
            for record in records
            if record.outcome.startswith("error")
        ]


def page(bench: Bench) -> Page:
    """The whole report."""
    tables = [times(bench), compiling(bench), accuracy(bench), modes(bench), sizes(bench)]
    tables += [*profiles(bench.engine())]
    return Page(
        title="Benchmark",
        answer=verdict(bench.cells),
        warnings=[*bench.broken(), *_without_kernels(bench)],
        parts=[table for table in tables if table.rows],
        origin=_origin(bench),
    )


def _without_kernels(bench: Bench) -> Iterator[str]:
    for record in bench.engine():
        if record.job.profile and any(phase.kernels is None for phase in record.phases):
            yield f"{record.workload}: no times of kernels, the device has no timestamp queries"


def markdown(page: Page) -> str:
    """The same for a file of the documentation."""
    lines = [f"# {page.title}", "", page.answer, ""]
    lines += [f"Warning: {text}\n" for text in page.warnings]
    for table in page.parts:
        if isinstance(table, Table):
            lines += [f"## {table.title}", "", *_markdown(table), ""]
            lines += [table.note, ""] if table.note else []
    return "\n".join([*lines, " · ".join(page.origin), ""])


def _markdown(table: Table) -> Iterator[str]:
    yield _line(name.lstrip(">") for name in table.columns)
    yield _line("---:" if name.startswith(">") else "---" for name in table.columns)
    yield from (_line(cell.replace("|", "\\|") for cell in row) for row in table.rows)


def _line(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def verdict(cells: Sequence[Cell]) -> str:
    """How many cells ended how."""
    skipped = sum(cell.gate not in (GOOD, BAD) for cell in cells)
    counts = {
        "ok": sum(cell.gate == GOOD for cell in cells),
        "fail a gate": sum(cell.gate == BAD for cell in cells),
        "skipped": skipped,
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "ok")
    return f"{len(cells)} cells: {told}"


def times(bench: Bench) -> Table:
    """Medians side by side, and the gates."""
    rows = [
        (
            WORKLOADS[cell.workload].name,
            HEADLINES[cell.phase],
            number(cell.engine.median if cell.engine else None),
            _spread(cell.engine.summary if cell.engine else None),
            number(cell.reference.median if cell.reference else None),
            cell.reference.mode if cell.reference else UNKNOWN,
            number(cell.ratio),
            cell.gate,
            cell.why,
        )
        for cell in bench.cells
    ]
    name = bench.reference
    columns = ("workload", "phase", ">engine ms", ">min, p25 - p75", f">{name} ms")
    return Table(
        "Times",
        (*columns, f"{name} mode", ">ratio", "gate", "nearest to its limit"),
        rows,
        note="Medians. Ratio: engine over reference, below 1 the engine is faster.",
        marked=frozenset(n for n, cell in enumerate(bench.cells) if cell.gate == BAD),
    )


def _spread(summary: dict[str, float] | None) -> str:
    if summary is None:
        return UNKNOWN
    return f"{number(summary['min'])}, {number(summary['p25'])} - {number(summary['p75'])}"


def compiling(bench: Bench) -> Table:
    """Seconds for all sessions, and device memory by phase."""
    again = {record.workload: record for record in bench.cached}
    rows = []
    for engine in bench.engine():
        cached, other = again.get(engine.workload), bench.other(engine.workload)
        rows.append(
            (
                WORKLOADS[engine.workload].name,
                number(engine.compile_s()),
                number(cached.compile_s() if cached else None),
                number(engine.first_runs_s()),
                number(other.compile_s(COMPILED) if other else None),
                _by_phase(engine),
                _by_phase(other),
            )
        )
    columns = ("workload", ">cold s", ">cached s", ">first runs s", f">{COMPILED} s")
    return Table(
        "Compiling all sessions, and device memory",
        (*columns, ">engine MB", f">{bench.reference} MB"),
        rows,
        note="Cold: no compiled plan and no shader kept from before, in a fresh process. "
        "Drivers may go on compiling in the first runs. "
        f"Memory: {', '.join(HEADLINES[phase] for phase in Phase)}.",
    )


def _by_phase(record: RunRecord | None) -> str:
    return " / ".join(_megabytes(allocated(record, phase, None)) for phase in Phase)


def _megabytes(nbytes: int | None) -> str:
    return number(None if nbytes is None else nbytes / 1e6)


def accuracy(bench: Bench) -> Table:
    """Errors by kind, and what the published gates would have said."""
    rows = []
    for cell in bench.cells:
        if not cell.findings:
            continue
        kinds = (("output",), ("loss",), ("gradient norm",), ("norm of",), ("probe of",))
        errors = [
            max((f.error for f in cell.findings if f.what.startswith(kind)), default=None)
            for kind in kinds
        ]
        paper = ", ".join(f"{finding.what} {finding.error:.1e}" for finding in cell.paper)
        good = all(finding.good for finding in cell.paper)
        rows.append(
            (
                WORKLOADS[cell.workload].name,
                HEADLINES[cell.phase],
                *(UNKNOWN if error is None else f"{error:.1e}" for error in errors),
                str(sum(not finding.good for finding in cell.findings)),
                f"{'pass' if good else 'FAIL'}: {paper}",
            )
        )
    columns = ("workload", "phase", ">output", ">loss", ">total norm", ">worst norm")
    return Table(
        "Relative errors",
        (*columns, ">worst probe", ">beyond limits", "published gates"),
        rows,
        note="Norms and probes are of single gradients. (file): against reference files.",
    )


def modes(bench: Bench) -> Table:
    """Every way in which the reference was run."""
    rows = []
    for runs in bench.runs:
        if runs.first.runner != bench.reference:
            continue
        for phase in runs.first.phases:
            medians = {timed.mode: timed.median for timed in timed_modes(runs, phase.phase)}
            for mode in phase.modes:
                rows.append(
                    (
                        WORKLOADS[runs.first.workload].name,
                        HEADLINES[phase.phase],
                        mode.name,
                        number(medians.get(mode.name)),
                        UNKNOWN if mode.deviation is None else f"{mode.deviation:.1e}",
                        mode.fault,
                    )
                )
    columns = ("workload", "phase", "mode", ">ms", ">differs from the first by", "fault")
    return Table(f"Modes of {bench.reference}", columns, rows)


def sizes(bench: Bench) -> Table:
    """Plans, with their kernels' sources, and what must be installed to run them."""
    rows = []
    for record in bench.engine():
        for phase in record.phases:
            if plan := phase.plan:
                constants = plan["constant_bytes"]
                rows.append(
                    (
                        WORKLOADS[record.workload].name,
                        HEADLINES[phase.phase],
                        str(plan["launches"]),
                        str(plan["barrier_groups"]),
                        str(plan["kernels"]),
                        number(plan["wgsl_bytes"] / 1e3),
                        number(plan["plan_bytes"] / 1e3),
                        number(constants / 1e3),
                    )
                )
    installed = [
        f"{name} {_megabytes(nbytes)} MB" for name, nbytes in bench.installed.items() if nbytes
    ]
    columns = ("workload", "phase", ">launches", ">groups", ">kernels", ">WGSL KB")
    return Table(
        "Frozen plans",
        (*columns, ">plan KB", ">of it constants KB"),
        rows,
        note=f"A plan holds its WGSL, but no weights. Installed to run: {', '.join(installed)}.",
    )


def _origin(bench: Bench) -> list[str]:
    """Devices, settings and revision, of the first record that has them."""
    seen: dict[str, None] = {}
    for runs in bench.runs:
        record = runs.first
        if (found := record.framework) is not None:
            seen[f"{found.name}: {found.version} on {found.device} {found.driver}".strip()] = None
    for record in [*bench.engine()][:1]:
        protocol, machine = record.job.protocol, record.machine
        size = "reduced networks" if record.job.reduced else "full size"
        weights = "" if record.job.storage == "f32" else f", weights in {record.job.storage}"
        seen[f"contract {record.job.contract}{weights}, {size}"] = None
        seen[
            f"{protocol.warm_ups} warm-ups and {protocol.warm_up_s:g} s at least, "
            f"{protocol.samples} samples"
        ] = None
        seen[f"{machine.get('processor', '')}, {machine.get('system', '')}"] = None
        seen[f"revision {record.revision}"] = None
        seen[record.begun] = None
    return list(seen)
