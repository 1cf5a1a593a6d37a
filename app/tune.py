"""The `tune` command: measure this device's best kernels, for later runs to use."""

from __future__ import annotations

import contextlib
from functools import partial

from rich.console import Console

from app.config import TuneConfig, UsageError
from app.contracts import open_for
from app.progress import Progress
from app.tables import print_table, say
from engine.errors import EngineError
from engine.kernel_table import load_table, table_path
from engine.specialize import MatmulChoice, choose_matmul
from engine.tuning import Measured, tune, tuned_facts
from models.zoo import PROGRAMS

DINOVISION = ("train", "infer")


def run_tune(config: TuneConfig, console: Console | None = None) -> int:
    """Measure, print and store; 0. Raises UsageError and EngineError."""
    config.check_usage()
    if config.model and config.model not in PROGRAMS:
        known = ", ".join(PROGRAMS)
        raise UsageError(f"there is no model '{config.model}': use one of {known}")
    console = console or Console()
    models = [config.model] if config.model else DINOVISION
    graphs = [PROGRAMS[model].build(PROGRAMS[model].size) for model in models]
    gpu = open_for(config.gpu, config.contract, partial(say, console))
    say(console, f"adapter: {gpu.name}")
    rows: list[Measured] = []

    def count(result: Measured) -> None:
        rows.append(result)
        progress.update(lambda: f"{len(rows)} matrix products measured")

    progress = Progress()
    with contextlib.closing(progress):
        table = tune(gpu, graphs, config.seconds, count, load_table(gpu))
    facts = tuned_facts(gpu)
    cells = [
        (
            r.key.layout,
            f"{r.key.batch} x {r.key.m} x {r.key.n} x {r.key.k}",
            f"{r.usual_us:.1f}",
            f"{r.best_us:.1f}",
            _words(r.choice or choose_matmul(*r.key[1:], facts, r.key.layout)),
            "" if r.choice else "as usual",
        )
        for r in rows
    ]
    columns = ("layout", "batch x m x n x k", ">usual us", ">best us", "kernel", "")
    print_table(console, columns, cells)
    path = table_path(gpu)
    try:
        table.save(path)
    except OSError as error:
        raise EngineError(f"{path} cannot be written: {error.strerror}") from error
    better = sum(r.choice is not None for r in rows)
    say(console, f"{better} of {len(rows)} products have a better kernel; stored in {path}")
    return 0


def _words(choice: MatmulChoice) -> str:
    tile = f"{choice.tile_m} x {choice.tile_n} x {choice.tile_k}"
    split = f", k in {choice.split_k} parts" if choice.split_k > 1 else ""
    return f"{choice.variant} {tile}{split}"
