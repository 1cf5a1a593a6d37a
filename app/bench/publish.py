"""A benchmark's figures as data: everything, and the short list that is kept in docs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from errno import EINVAL
from pathlib import Path
from typing import Any

from app.bench.cells import Cell, Runs
from app.bench.record import Phase, RunRecord
from app.telemetry.rows import to_json
from engine.atomic import write_atomic

COMPILED = "torch.compile"


def rows(cells: Sequence[Cell], runs: Sequence[Runs], cached: Sequence[RunRecord]) -> list[Any]:
    """One row for each cell: medians, the reference's mode, ratio, gate, compile seconds of the
    workload (all sessions) and provenance.
    """
    return [_row(cell, runs, cached) for cell in cells]


def _row(cell: Cell, runs: Sequence[Runs], cached: Sequence[RunRecord]) -> dict[str, Any]:
    mine = {r.first.runner: r for r in runs if r.first.workload == cell.workload}
    engine = mine["engine"].first
    name, reference = next(
        ((n, r.first) for n, r in mine.items() if n != "engine"), ("torch", None)
    )
    again = next((record for record in cached if record.workload == cell.workload), None)
    return {
        "workload": cell.workload,
        "contract": cell.contract,
        "storage": engine.job.storage,
        "phase": str(cell.phase),
        "engine_ms": cell.engine.median if cell.engine else None,
        f"{name}_ms": cell.reference.median if cell.reference else None,
        f"{name}_mode": cell.reference.mode if cell.reference else None,
        "ratio": cell.ratio,
        "gate": cell.gate,
        "engine_compile_s": engine.compile_s(),
        "engine_compile_cached_s": again.compile_s() if again else None,
        f"{name}_compile_s": reference.compile_s(COMPILED) if reference else None,
        "engine_summary_ms": cell.engine.summary if cell.engine else None,
        f"{name}_summary_ms": cell.reference.summary if cell.reference else None,
        "engine_bytes": allocated(engine, cell.phase, None),
        f"{name}_bytes": allocated(
            reference, cell.phase, cell.reference.mode if cell.reference else None
        ),
        "engine_clocks": _clocks(engine, cell.phase),
        f"{name}_clocks": _clocks(reference, cell.phase),
        "provenance": _provenance(engine, reference),
    }


def allocated(record: RunRecord | None, phase: Phase, mode: str | None) -> int | None:
    """Device bytes of a phase in a mode, or the first one; None where it is not known."""
    found = record.phase(phase) if record else None
    for candidate in found.modes if found else ():
        if mode is None or candidate.name == mode:
            return candidate.memory.get("allocated")
    return None


def _clocks(record: RunRecord | None, phase: Phase) -> dict[str, float]:
    """Clocks, temperature and power after the samples of the runner's first mode."""
    found = record.phase(phase) if record else None
    return found.clocks if found else {}


def _provenance(engine: RunRecord, reference: RunRecord | None) -> dict[str, Any]:
    return {
        "revision": engine.revision,
        "begun": engine.begun,
        "protocol": asdict(engine.job.protocol),
        "machine": engine.machine,
        "engine": asdict(engine.framework) if engine.framework else None,
        "reference": asdict(reference.framework) if reference and reference.framework else None,
    }


def publish(folder: Path, found: list[Any], adapter: str, kind: str) -> Path:
    """Write the rows as ADAPTER-KIND-DATE.json; the file.

    `kind`: the contract, with -f16 behind it where weights were stored so, and -dawn where the
    engine ran on Dawn. Rows of other workloads that the file has already stay: a long benchmark may
    be run in parts.
    Raises OSError.
    """
    day = datetime.now(UTC).date().isoformat()
    path = folder / f"{slug(adapter)}-{kind}-{day}.json"
    folder.mkdir(parents=True, exist_ok=True)
    new = {row["workload"] for row in found}
    kept = [row for row in _earlier(path) if row["workload"] not in new]
    write_atomic(path, to_json([*kept, *found], indent=1) + "\n")
    return path


def _earlier(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text())
        return [row for row in rows if row["workload"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise OSError(EINVAL, "it is no list of figures; move it away", str(path)) from error


def slug(adapter: str) -> str:
    """An adapter's name as part of a file name: its words up to the first parenthesis."""
    words = re.findall(r"[a-z0-9]+", adapter.lower().partition("(")[0])
    return "-".join(words) or "adapter"
