"""The `report` command."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from app.config import ReportConfig
from app.progress import Progress
from app.report.page import Page
from app.tables import say, to_reader
from app.telemetry.folder import RunFolder, SweepFolder, open_folder
from app.telemetry.recorder import TelemetryError
from engine.atomic import write_atomic

Reading = Callable[[str], None]


def run_report(config: ReportConfig, console: Console | None = None) -> int:
    """Write the page and what belongs to it, print the tables; 0.

    Raises UsageError, and TelemetryError for folders that cannot be read or files not written.
    """
    config.check_usage()
    if importlib.util.find_spec("matplotlib") is None:
        raise TelemetryError("report draws with matplotlib: pip install matplotlib")
    console = console or Console()
    folders = [open_folder(path) for path in (config.folder, config.other) if path is not None]
    progress = Progress()
    with contextlib.closing(progress):
        page = _page(folders, lambda name: progress.update(lambda: f"reading {name}"))
    name = "report.html" if len(folders) == 1 else "comparison.html"
    try:
        written = _write(page, config.out or config.folder / name, folders)
    except OSError as error:
        raise TelemetryError(
            f"cannot write {error.filename or 'the report'}: {error.strerror or error}"
        ) from error
    with to_reader(console):
        page.print(console)
        say(console, f"\nwritten: {', '.join(map(str, written))}")
    return 0


def _page(folders: list[RunFolder | SweepFolder], reading: Reading) -> Page:
    # Plots need matplotlib, which nothing else does.
    from app.report.compare import compare_runs, compare_sweeps
    from app.report.run import run_page
    from app.report.sweep import sweep_page

    match folders:
        case [RunFolder() as run]:
            return run_page(run)
        case [SweepFolder() as sweep]:
            return sweep_page(sweep, reading)
        case [RunFolder() as run, RunFolder() as other]:
            return compare_runs(run, other)
        case [SweepFolder() as sweep, SweepFolder() as other_sweep]:
            return compare_sweeps(sweep, other_sweep)
    raise TelemetryError("a run and a sweep cannot be compared: name two runs or two sweeps")


def _write(page: Page, out: Path, folders: list[RunFolder | SweepFolder]) -> list[Path]:
    """The page, and beside a single run its trace and CSV files; their paths."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, page.html())
    match folders:
        case [RunFolder() as run]:
            return [out, *_write_exports(run)]
    return [out]


def _write_exports(run: RunFolder) -> list[Path]:
    from app.telemetry.csv_export import write_csv
    from app.telemetry.trace import write_trace

    trace, record = run.path / "trace.pftrace", run.path / "run.json"
    # A run recorded into the folder since makes an old trace worthless.
    if not trace.exists() or trace.stat().st_mtime < record.stat().st_mtime:
        write_trace(run, trace)
    return [trace, *write_csv(run)]
