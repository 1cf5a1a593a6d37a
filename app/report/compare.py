"""Two runs, or two sweeps, side by side."""

from __future__ import annotations

from collections.abc import Callable

from app.report.arms import Arm, Group, SweepFigures
from app.report.figures import RunFigures
from app.report.page import Page, Plot, Table
from app.report.plots import missed_against_rate
from app.report.run import JOBS, frame_time_plot, origin, warnings, worst_second
from app.report.sweep import INTERVALS, group_answer, sweep_origin
from app.report.text import UNKNOWN, labels, number, span
from app.telemetry.folder import RunFolder, SweepFolder
from app.telemetry.statistics import CAUSES
from app.telemetry.summary import percentiles


def compare_runs(first: RunFolder, second: RunFolder) -> Page:
    """Both runs' figures and frame times. Raises `TelemetryError` for damaged rows."""
    runs = [RunFigures.read(first), RunFigures.read(second)]
    names = labels([first.path, second.path])
    page = Page(f"DinoVision: {names[0]} and {names[1]}", _difference(runs, names))
    page.warnings = [
        f"{name}: {text}" for name, run in zip(names, runs, strict=True) for text in warnings(run)
    ]
    page.details = [f"{name}: {run.setting}." for name, run in zip(names, runs, strict=True)]
    page.parts = [_runs_table(runs, names)]
    timed = [(n, run) for n, run in zip(names, runs, strict=True) if run.statistics.frame_ms]
    if timed:
        page.parts.append(frame_time_plot(timed))
    page.parts += [
        worst_second(run.worst, f" of {name}")
        for name, run in zip(names, runs, strict=True)
        if run.worst is not None
    ]
    page.origin = _origins(names, [origin(first), origin(second)])
    return page


def compare_sweeps(first: SweepFolder, second: SweepFolder) -> Page:
    """Arms of one setting beside each other. Raises `TelemetryError` when a folder is damaged."""
    names = labels([first.path, second.path])
    sweeps = [SweepFigures.parse(first), SweepFigures.parse(second)]
    pairs = [
        (group, other)
        for group in sweeps[0].groups
        for other in sweeps[1].groups
        if (group.job, group.hz) == (other.job, other.hz)
    ]
    page = Page(f"DinoVision: {names[0]} and {names[1]}", _sweeps_answer(pairs, names))
    for group, other in pairs:
        page.details += [
            f"{names[0]}, {group.title}: {group_answer(sweeps[0], group)}",
            f"{names[1]}, {other.title}: {group_answer(sweeps[1], other)}",
        ]
        plot = missed_against_rate(other, sweeps[1].renderer_alone(other), group)
        note = f"Hollow: {names[0]}. Filled: {names[1]}. Lines join the same arm."
        page.parts += [Plot(f"Both sweeps: {group.title}", plot, note), _arms(group, other, names)]
    page.origin = _origins(names, [sweep_origin(first), sweep_origin(second)])
    return page


def _sweeps_answer(pairs: list[tuple[Group, Group]], names: list[str]) -> str:
    if not pairs:
        return "The sweeps have no job and refresh rate in common: there is nothing to compare."
    if len(pairs) > 1:
        return f"{len(pairs)} pairs of job and refresh rate were measured in both sweeps."
    best, work = [group.best() for group in pairs[0]], pairs[0][0].work
    figures = [
        f"{name} misses {number(arm.missed)} of 1000 at {number(arm.rate)} {work} a second"
        for name, arm in zip(names, best, strict=True)
        if arm is not None
    ]
    return f"At best {', '.join(figures)}."


def _difference(runs: list[RunFigures], names: list[str]) -> str:
    missed = [run.missed_per_1000 for run in runs]
    if missed[0] is None or missed[1] is None:
        return "One of the runs showed no frame: there is nothing to compare."
    fewer = 0 if missed[0] <= missed[1] else 1
    rates = [run.statistics.per_second("train") for run in runs]
    text = (
        f"{names[fewer]} misses {number(missed[fewer])} of 1000 refreshes, "
        f"{names[1 - fewer]} {number(missed[1 - fewer])}"
    )
    if any(rates):
        text += f"; they train at {number(rates[fewer])} and {number(rates[1 - fewer])} steps/s"
    return text + "."


def _figures(run: RunFigures) -> dict[str, float | None]:
    """What two runs are compared by."""
    statistics = run.statistics
    figures: dict[str, float | None] = {
        "missed of 1000": run.missed_per_1000,
        "longest stale run": statistics.longest_stale_run,
    }
    figures |= {f"late frames, cause {cause}": statistics.causes[cause] for cause in CAUSES}
    for name, value in percentiles(statistics.frame_ms).items():
        figures[f"frame time {name}, ms"] = value
    figures["eye images on the GPU p50, ms"] = percentiles(statistics.eye_ms)["p50"]
    for job, words in JOBS:
        figures[f"{words}s per second"] = statistics.per_second(job)
        figures[f"{words} p50, ms"] = run.latency(job)["p50"]
        figures[f"{words} p95, ms"] = run.latency(job)["p95"]
    for tenant, share in statistics.gpu_share().items():
        figures[f"share of GPU time, {tenant}, %"] = 100 * share
    return figures


def _runs_table(runs: list[RunFigures], names: list[str]) -> Table:
    rows = []
    first, second = (_figures(run) for run in runs)
    for name, value in first.items():
        if value is not None or second[name] is not None:
            rows.append([name, number(value), number(second[name]), _change(value, second[name])])
    return Table("Side by side", ("", f">{names[0]}", f">{names[1]}", ">change"), rows)


def _change(first: float | None, second: float | None) -> str:
    if first is None or second is None:
        return UNKNOWN
    if first == second:
        return "none"
    return f"{100 * (second / first - 1):+.1f} %" if first else f"{second - first:+.2f}"


def _arms(group: Group, other: Group, names: list[str]) -> Table:
    later = {arm.label: arm for arm in other.arms}

    def cells(get: Callable[[Arm], str], arm: Arm) -> list[str]:
        return [get(arm), get(later[arm.label])]

    rows = [
        [
            arm.label,
            *cells(lambda a: span(a.missed, a.ci95.get("missed_per_1000")), arm),
            *cells(lambda a: span(a.rate, a.ci95.get(a.rate_name)), arm),
            *cells(lambda a: number(a.values.get("frame_p99_ms")), arm),
            *cells(lambda a: number(a.values.get("worker_ms")), arm),
        ]
        for arm in group.arms
        if arm.label in later
    ]
    metrics = ("missed of 1000", f"{group.work}/s", "frame p99, ms", "latency, ms")
    columns = [f">{metric}: {name}" for metric in metrics for name in names]
    note = f"Arms are named chunks/in flight. {INTERVALS}"
    return Table(f"Arms: {group.title}", ("arm", *columns), rows, note)


def _origins(names: list[str], origins: list[list[str]]) -> list[str]:
    return [f"{name}: {', '.join(lines)}" for name, lines in zip(names, origins, strict=True)]
