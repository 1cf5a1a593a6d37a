"""The report of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.report.arms import Arm, Group, SweepFigures
from app.report.figures import UNNOTICED_PER_1000, RunFigures, pooled
from app.report.page import Page, Plot, Table
from app.report.plots import frame_times, latency_curve, missed_against_rate
from app.report.run import worst_second
from app.report.text import UNKNOWN, number, percent, span
from app.telemetry.folder import SweepFolder

ARM_COLUMNS = (
    "policy",
    ">chunks",
    ">in flight",
    ">missed of 1000",
    ">frame p50, ms",
    ">frame p99, ms",
    ">per second",
    ">of allowed",
    ">latency, ms",
    ">alone, ms",
    ">GPU %",
)
INTERVALS = "In parentheses: 95 % bootstrap intervals."
ALLOWED = (
    "“Allowed” is the rate that the network reaches alone, times the share of GPU time that the "
    "renderer leaves idle."
)
SAME = 0.005
"""Relative difference of two rates that is not worth a word."""

Runs = Mapping[str, list[RunFigures]]


def sweep_page(folder: SweepFolder, reading: Callable[[str], None] = lambda arm: None) -> Page:
    """Tables and plots of a sweep; `reading` is told each arm whose rows are read.

    Raises `TelemetryError` when the folder is damaged.
    """
    sweep = SweepFigures.parse(folder)
    runs = {}
    for arm in sweep.arms:
        reading(arm.name)
        runs[arm.name] = _runs(sweep, arm)
    page = Page(f"DinoVision sweep: {folder.path.resolve().name}", *_answers(sweep))
    if folder.outcome != "ok":
        page.warnings.append(f"The sweep's outcome is “{folder.outcome}”: arms may lack runs.")
    for group in sweep.groups:
        page.parts += _group_parts(sweep, group, runs)
    page.parts += [_baselines(sweep), *_telemetry_cost(sweep), *_worst_seconds(sweep, runs)]
    page.origin = sweep_origin(folder)
    return page


def sweep_origin(folder: SweepFolder) -> list[str]:
    """Where a sweep's figures are from."""
    summary = folder.summary
    known = [summary.get("adapter"), summary.get("driver")]
    if summary.get("revision"):
        known.append(f"revision {summary['revision']}")
    repeats, seconds = summary.get("repeats"), summary.get("seconds")
    if repeats and seconds:
        runs = "1 run" if repeats == 1 else f"{repeats} runs"
        known.append(f"{runs} of {seconds} s for each arm, in random order")
    return [str(text) for text in known if text]


def group_answer(sweep: SweepFigures, group: Group) -> str:
    """The best arm of a group in a sentence."""
    best = group.best("deadline") or group.best()
    if best is None:
        return "no arm was measured."
    kept = (
        f", {percent(best.allowed_share)} of what the idle GPU time allows"
        if (best.allowed_share is not None)
        else ""
    )
    return (
        f"the {best.policy} policy ({best.in_words}) misses {number(best.missed)} of 1000 "
        f"refreshes at {number(best.rate)} {group.work} a second{kept}."
    )


def arms_table(group: Group) -> Table:
    """All arms of a group; its best ones of each kind marked."""
    best = [group.best("fixed"), group.best("deadline")]
    rows = [
        [
            arm.policy,
            str(arm.chunks),
            str(arm.in_flight),
            span(arm.missed, arm.ci95.get("missed_per_1000")),
            number(arm.values.get("frame_p50_ms")),
            span(arm.values.get("frame_p99_ms"), arm.ci95.get("frame_p99_ms")),
            span(arm.rate, arm.ci95.get(arm.rate_name)),
            percent(arm.allowed_share),
            span(arm.values.get("worker_ms"), arm.ci95.get("worker_ms")),
            number(arm.values.get("isolated_worker_ms")),
            _shares(arm),
        ]
        for arm in group.arms
    ]
    latency = "a training step" if group.job == "train" else "an inference"
    note = (
        f"{INTERVALS} “Per second” counts {group.work}; latency is that of {latency}, from its "
        f"first chunk's submission to its last one's end; GPU % is the share of GPU time of "
        f"renderer/training/inference. {ALLOWED} Marked: the best arm with "
        f"the fixed and with the deadline policy, that is the fastest with at most "
        f"{UNNOTICED_PER_1000:g} missed refresh of 1000, else the one that misses least."
    )
    marked = frozenset(n for n, arm in enumerate(group.arms) if arm in best)
    return Table(f"Arms: {group.title}", ARM_COLUMNS, rows, note, marked)


def _shares(arm: Arm) -> str:
    shares = [arm.values.get(f"{name}_share") for name in ("render", "train", "infer")]
    return "/".join(UNKNOWN if share is None else f"{100 * share:.0f}" for share in shares)


def _answers(sweep: SweepFigures) -> tuple[str, list[str]]:
    """The headline, and what to say below it."""
    groups = [(group, group.best("deadline") or group.best()) for group in sweep.groups]
    good = sum(best is not None and best.unnoticed for _, best in groups)
    details = [line for group in sweep.groups for line in _details(sweep, group)]
    if len(groups) == 1:
        alone = sweep.renderer_alone(sweep.groups[0])
        # Where the renderer cannot keep up by itself, the network is not to blame.
        fair = alone is None or alone.missed is None or alone.unnoticed
        verdict = "Yes" if good else "Not here" if fair else "Undecided here"
        return f"{verdict}: {group_answer(sweep, sweep.groups[0])}", details
    settings = f"{good} of {len(groups)} settings"
    return f"{'Yes' if good == len(groups) else 'In part'}: unnoticed in {settings}.", details


def _details(sweep: SweepFigures, group: Group) -> list[str]:
    several = len(sweep.groups) > 1
    lines = [f"{group.title}: {group_answer(sweep, group)}"] if several else []
    fixed, deadline = group.best("fixed"), group.best("deadline")
    sentence = ""
    if fixed is not None and deadline is not None:
        sentence = (
            f"The best fixed setting ({fixed.in_words}) misses {number(fixed.missed)} at "
            f"{number(fixed.rate)} a second{_gain(deadline, fixed)}. "
        )
    alone = sweep.renderer_alone(group)
    if alone is not None and alone.missed is not None:
        sentence += f"The renderer alone misses {number(alone.missed)} of 1000."
    return [*lines, sentence] if sentence else lines


def _gain(deadline: Arm, fixed: Arm) -> str:
    if not deadline.rate or not fixed.rate:
        return ""
    change = deadline.rate / fixed.rate - 1
    if abs(change) < SAME:
        return ": the deadline policy gets as much work done"
    word = "more" if change >= 0 else "less"
    return f": the deadline policy gets {percent(abs(change))} {word} work done"


def _runs(sweep: SweepFigures, arm: Arm) -> list[RunFigures]:
    """The arm's runs, as far as their folders are still there."""
    present = [name for name in arm.folders if (sweep.folder.path / name).is_dir()]
    return [RunFigures.read(sweep.folder.run(name)) for name in present]


def _group_parts(sweep: SweepFigures, group: Group, runs: Runs) -> list[Table | Plot]:
    parts: list[Table | Plot] = [
        Plot(
            f"What the wearer pays for the network: {group.title}",
            missed_against_rate(group, sweep.renderer_alone(group)),
            "One point for each arm, named chunks/in flight; bars are 95 % intervals. Best is "
            f"far right, in the shaded band: at most {UNNOTICED_PER_1000:g} missed of 1000.",
        ),
        arms_table(group),
    ]
    times = [(arm.label, pooled(runs[arm.name])) for arm in group.arms]
    times = [(label, values) for label, values in times if values.size]
    if times:
        svg = frame_times(times, group.hz and 1e3 / group.hz)
        note = (
            "Line: 1st to 99th percentile; bar: 25th to 75th; tick: median; dot: longest frame. "
            "Arms are named chunks/in flight."
        )
        parts.append(Plot(f"Frame times: {group.title}", svg, note))
    curve = latency_curve(group)
    if curve is not None:
        svg, base = curve
        note = (
            f"Each curve is relative to its own latency at {base} chunk{'s' if base > 1 else ''}, "
            "so that shapes can be compared: the published Quest 3S figures are of another "
            "network on another GPU."
        )
        parts.append(Plot(f"Latency against chunk count: {group.title}", svg, note))
    return parts


def _baselines(sweep: SweepFigures) -> Table:
    rows = [
        [
            f"renderer, {arm.hz:g} Hz" if arm.hz else "renderer",
            "",
            "",
            span(arm.missed, arm.ci95.get("missed_per_1000")),
            span(arm.values.get("frame_p99_ms"), arm.ci95.get("frame_p99_ms")),
            percent(arm.values.get("render_share")),
            "",
            "",
        ]
        for arm in sweep.solo_render
    ]
    rows += [
        [
            f"network, {arm.job}",
            str(arm.chunks),
            str(arm.in_flight),
            "",
            "",
            "",
            span(arm.rate, arm.ci95.get(arm.rate_name)),
            number(arm.values.get("worker_ms")),
        ]
        for arm in sweep.solo_worker
    ]
    columns = (
        "alone",
        ">chunks",
        ">in flight",
        ">missed of 1000",
        ">frame p99, ms",
        ">share of GPU time",
        ">per second",
        ">latency, ms",
    )
    return Table("Each tenant alone", columns, rows, INTERVALS)


def _telemetry_cost(sweep: SweepFigures) -> list[Table]:
    metrics = ("missed_per_1000", "observed_frame_p50_ms")
    rows = [
        [
            name,
            state,
            *(span(arm.values.get(metric), arm.ci95.get(metric)) for metric in metrics),
            *(
                span(arm.values.get(metric), arm.ci95.get(metric))
                for metric in ("train_steps_per_s", "infer_per_s")
            ),
        ]
        for name, on, off in sweep.telemetry
        for state, arm in (("on", on), ("off", off))
    ]
    columns = (
        "arm",
        "telemetry",
        ">missed of 1000",
        ">frame p50, ms",
        ">training steps/s",
        ">inferences/s",
    )
    note = f"{INTERVALS} Frame times here are to the observed completion, known without stamps."
    return [Table("What telemetry itself costs", columns, rows, note)] if rows else []


def _worst_seconds(sweep: SweepFigures, runs: Runs) -> list[Plot]:
    """The worst second of all arms, and of those with the deadline policy."""
    seconds = [
        (run.worst, arm) for arm in sweep.arms for run in runs[arm.name] if run.worst is not None
    ]
    plots: list[Plot] = []
    for policies in (("fixed", "greedy", "deadline"), ("deadline",)):
        chosen = [pair for pair in seconds if pair[1].policy in policies]
        if chosen:
            second, arm = max(chosen, key=lambda pair: (pair[0].missed, pair[0].longest_ms))
            plot = worst_second(second, f": {arm.policy} policy, {arm.in_words}, job {arm.job}")
            if all(plot.title != other.title for other in plots):
                plots.append(plot)
    return plots
