"""The report of one run."""

from __future__ import annotations

from collections.abc import Sequence

from app.report.figures import UNNOTICED_PER_1000, RunFigures, pooled
from app.report.page import Page, Plot, Table
from app.report.plots import frame_percentiles
from app.report.quality_plot import quality_plot
from app.report.text import count, number, percent
from app.report.timeline import Second, Timeline
from app.report.timeline_plot import timeline_plot
from app.telemetry.folder import RunFolder
from app.telemetry.statistics import CAUSES
from app.telemetry.summary import percentiles

JOBS = (("train", "training step"), ("infer", "inference"))
CAUSE_WORDS = {
    "chunk": "behind a chunk in the queue",
    "start": "started late on the CPU",
    "render": "the eye images themselves",
}


def run_page(folder: RunFolder) -> Page:
    """Tables and plots of a run. Raises `TelemetryError` for damaged rows."""
    run = RunFigures.read(folder)
    page = Page(f"DinoVision: {folder.path.resolve().name}", answer(run))
    page.warnings = warnings(run)
    page.details = [run.setting + "."]
    page.facts = _facts(run)
    page.parts = [_tenants(run), _durations(run), _misses(run)]
    if len(run.statistics.frame_ms):
        page.parts.append(frame_time_plot([(folder.path.resolve().name, run)]))
    page.parts += learning(run)
    if run.worst is not None:
        page.parts.append(worst_second(run.worst))
    page.origin = origin(folder)
    return page


def answer(run: RunFigures) -> str:
    """The run in a sentence."""
    statistics = run.statistics
    missed = run.missed_per_1000
    work = [
        f"{number(statistics.per_second(job))} {words}s"
        for job, words in JOBS
        if statistics.runs[job]
    ]
    beside = f"while {' and '.join(work)} a second ran" if work else "with no network at work"
    if missed is None:
        return f"Nothing to judge: no frame of this run was shown, {beside}."
    verdict = "Yes, here" if missed <= UNNOTICED_PER_1000 else "Not here"
    return f"{verdict}: {number(missed)} of 1000 refreshes were missed {beside}."


def warnings(run: RunFigures) -> list[str]:
    """What a reader must know before trusting the figures."""
    found = []
    outcome, record = run.folder.outcome, run.folder.run
    if outcome == "incomplete":
        found.append("The run was killed: these are the rows that had reached the disk.")
    elif outcome != "ok":
        found.append(f"The run's outcome is “{outcome}”.")
    if record.get("rows_lost"):
        found.append(f"{record['rows_lost']} rows were lost: {record.get('warning')}.")
    if not run.stamped and run.statistics.frames:
        found.append("No GPU timestamps: GPU times are upper bounds from observed completions.")
    return found


def origin(folder: RunFolder) -> list[str]:
    """Where a run's figures are from."""
    config = folder.config
    known = [folder.adapter, config.get("driver"), config.get("encoder")]
    if config.get("revision"):
        known.append(f"revision {config['revision']}")
    if isinstance(folder.clock.get("error_us"), int | float):
        known.append(f"clock error {folder.clock['error_us']:.1f} µs")
    if isinstance(folder.run.get("started"), str):
        known.append(f"{folder.run['started'][:16].replace('T', ' ')} UTC")
    known.append(f"outcome {folder.outcome}")
    return [str(text) for text in known if text]


def frame_time_plot(runs: Sequence[tuple[str, RunFigures]]) -> Plot:
    """Frame times of runs that have any, each with its label."""
    hz = runs[0][1].folder.hz
    svg = frame_percentiles([(name, pooled([run])) for name, run in runs], hz and 1e3 / hz)
    note = "From the frame's start to the end of its eye images. The slowest frames take most room."
    return Plot("Frame times", svg, note)


def worst_second(second: Second, of: str = "") -> Plot:
    """The timeline of a second, with `of` saying whose."""
    timeline = Timeline.read(second)
    why = f"The second with most missed refreshes ({second.missed})"
    if not second.missed:
        why = (
            f"No refresh was missed: the second with the longest frame ({second.longest_ms:.1f} ms)"
        )
    note = f"{why}, in four quarters. Eye images that came late are red."
    if timeline.observed:
        note += " Without GPU timestamps bars run from submission to observed completion."
    return Plot(f"Worst second{of}", timeline_plot(timeline), note)


def learning(run: RunFigures) -> list[Plot]:
    """The decoder's quality over time, if it was measured beside the frames."""
    rows = list(run.folder.quality())
    adaptation = run.statistics.adaptation
    if len(rows) < 2 or adaptation.first_db is None or adaptation.last_db is None:
        return []
    note = (
        "Held-out photographs, measured one at a time beside the frames: "
        f"{adaptation.first_db:.2f} dB before, {adaptation.last_db:.2f} dB at last."
    )
    return [Plot("What it learnt", quality_plot(rows), note)]


def _facts(run: RunFigures) -> list[tuple[str, str]]:
    statistics = run.statistics
    facts = [
        (number(run.missed_per_1000), "missed of 1000"),
        (str(statistics.longest_stale_run), "longest stale run"),
        (f"{number(percentiles(statistics.frame_ms)['p99'])} ms", "frame time p99"),
    ]
    for job, words in JOBS:
        if statistics.runs[job]:
            facts.append((number(statistics.per_second(job)), f"{words}s a second"))
    return [*facts, (percent(sum(statistics.gpu_share().values())), "of GPU time used")]


def _tenants(run: RunFigures) -> Table:
    statistics, shares = run.statistics, run.statistics.gpu_share()
    rate = statistics.frames / statistics.seconds if statistics.seconds else None
    rows = [
        ["renderer", "frames", count(statistics.frames), number(rate), percent(shares["render"])]
    ]
    rows += [
        [
            "network",
            f"{words}s",
            count(statistics.runs[job]),
            number(statistics.per_second(job)),
            percent(shares[job]),
        ]
        for job, words in JOBS
    ]
    columns = ("tenant", "work", ">done", ">per second", ">share of GPU time")
    return Table("Both tenants", columns, rows, f"{number(statistics.seconds)} seconds.")


def _durations(run: RunFigures) -> Table:
    statistics = run.statistics
    samples = [
        ("frame, start to end of eye images", statistics.frame_ms),
        ("eye images on the GPU", statistics.eye_ms),
        ("submit call of the eye images", statistics.submit_ms),
        ("handing the images over", statistics.presenter_ms),
        *((words, statistics.run_ms[job]) for job, words in JOBS),
    ]
    rows = []
    for name, values in samples:
        if len(values):
            rows.append([name, *(number(value) for value in percentiles(values).values())])
    note = "Steps and inferences: from the submission of the first chunk to the end of the last."
    return Table("Durations, ms", ("", ">p50", ">p95", ">p99", ">max"), rows, note)


def _misses(run: RunFigures) -> Table:
    statistics = run.statistics
    rows = [
        ["refreshes", count(statistics.vsyncs)],
        ["missed", count(statistics.missed)],
        ["of these an old image was repeated", count(statistics.stale)],
        ["missed of 1000", number(run.missed_per_1000)],
        ["longest stale run", count(statistics.longest_stale_run)],
        ["frames dropped", count(statistics.dropped)],
    ]
    rows += [
        [f"late frames: {CAUSE_WORDS[cause]}", count(statistics.causes[cause])] for cause in CAUSES
    ]
    return Table("Missed refreshes", ("", ">count"), rows)
