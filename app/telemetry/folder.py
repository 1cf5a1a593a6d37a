"""Reading back what a run or a sweep left behind, whole or cut short.

Rows are read line by line, so folders of any length fit. A run that was killed may end in a torn
line; rows of older runs lack newer fields, which then hold their defaults.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from app.telemetry.recorder import TelemetryError
from app.telemetry.rows import ROWS, ChunkRow, FrameRow, QualityRow

Row = TypeVar("Row", FrameRow, ChunkRow, QualityRow)

LONGEST_LINE = 1 << 20
"""Bytes; a longer line is damage, not a row."""


@dataclass(frozen=True)
class RunFolder:
    """A recorded run: what `run.json` says of it, and its rows. See `open_run`."""

    path: Path
    run: Mapping[str, Any]
    """`run.json`."""
    summary: Mapping[str, Any] | None
    """`summary.json`; None when the run did not come to its end."""

    @property
    def outcome(self) -> str:
        """One of "ok", "interrupted", "incomplete", "error: ..." and "skipped: ..."."""
        return str(self.run.get("outcome", "incomplete"))

    @property
    def config(self) -> Mapping[str, Any]:
        """What the run was asked to do, and where: options, adapter, driver."""
        return _section(self.run, "config")

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the command, by name."""
        return _section(self.config, "options")

    @property
    def clock(self) -> Mapping[str, Any]:
        """Calibration of the GPU clock; empty when the device has no timestamps."""
        return _section(self.run, "clock")

    @property
    def adapter(self) -> str:
        """The GPU's name."""
        return str(self.config.get("adapter", "unknown adapter"))

    @property
    def hz(self) -> float | None:
        """Refresh rate, Hz."""
        hz = self.options.get("hz", (self.summary or {}).get("hz"))
        return float(hz) if isinstance(hz, int | float) and 0 < hz < math.inf else None

    def frames(self) -> Iterator[FrameRow]:
        """The frames in order. Raises `TelemetryError` at a line that is no row."""
        for line in _read_lines(self.path / "frames.jsonl"):
            if "predicted_display_ns" in line.fields:  # once the deadline, when rows had no due_ns
                line.fields.setdefault("due_ns", line.fields["predicted_display_ns"])
            yield line.row(FrameRow)

    def chunks(self) -> Iterator[ChunkRow]:
        """The chunks in order of submission. Raises `TelemetryError` at a line that is no row."""
        for line in _read_lines(self.path / "chunks.jsonl"):
            yield line.row(ChunkRow)

    def quality(self) -> Iterator[QualityRow]:
        """Figures of the decoder, in order. Raises `TelemetryError` at a line that is no row."""
        for line in _read_lines(self.path / "quality.jsonl"):
            yield line.row(QualityRow)


@dataclass(frozen=True)
class SweepFolder:
    """A finished sweep: its arms' figures, and where the runs behind them are. See `open_sweep`."""

    path: Path
    sweep: Mapping[str, Any]
    """`sweep.json`."""
    summary: Mapping[str, Any]
    """`summary.json`."""

    @property
    def outcome(self) -> str:
        """As of a run."""
        return str(self.summary.get("outcome", self.sweep.get("outcome", "incomplete")))

    def run(self, folder: str) -> RunFolder:
        """The run in a folder that the summary names. Raises `TelemetryError`."""
        path = (self.path / folder).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise TelemetryError(f"{self.path / 'summary.json'} names {folder}, outside the sweep")
        return open_run(path)


def open_folder(path: Path) -> RunFolder | SweepFolder:
    """A run or sweep folder. Raises `TelemetryError` for anything else."""
    if not path.is_dir():
        raise TelemetryError(f"{path} is no folder; name one that a run or a sweep wrote")
    return open_sweep(path) if (path / "sweep.json").exists() else open_run(path)


def open_run(path: Path) -> RunFolder:
    """A run folder, also of a run that was killed. Raises `TelemetryError` for anything else."""
    if not (path / "run.json").exists():
        raise TelemetryError(f"{path} has no run.json; name a folder that a run or a sweep wrote")
    summary = path / "summary.json"
    return RunFolder(
        path, _read_object(path / "run.json"), _read_object(summary) if summary.exists() else None
    )


def open_sweep(path: Path) -> SweepFolder:
    """A sweep folder with a summary. Raises `TelemetryError` for anything else."""
    sweep = _read_object(path / "sweep.json")
    if not (path / "summary.json").exists():
        raise TelemetryError(
            f"the sweep in {path} was killed before its summary; name one of the runs in "
            f"{path / 'arms'}, or sweep again"
        )
    return SweepFolder(path, sweep, _read_object(path / "summary.json"))


@dataclass(frozen=True)
class _Line:
    where: str
    fields: dict[str, Any]

    def row(self, kind: type[Row]) -> Row:
        """The line as a row; unknown fields are left out."""
        checks, required = _CHECKS[kind], _REQUIRED[kind]
        known = {name: value for name, value in self.fields.items() if name in checks}
        wrong = next((name for name, value in known.items() if not checks[name](value)), None)
        wrong = wrong or next((name for name in required if name not in known), None)
        if wrong is not None:
            raise TelemetryError(f"{self.where} is damaged: {wrong} is {self.fields.get(wrong)!r}")
        return kind(**known)


def _read_lines(path: Path) -> Iterator[_Line]:
    """The objects of a file, one a line; none of a file that is missing (a run killed early)."""
    if not path.exists():
        return
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
                fields = _parse(line)
                if fields is None and not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    return  # torn when the run was killed
                where = f"line {number} of {path}"
                if not isinstance(fields, dict):
                    raise TelemetryError(f"{where} is damaged: it is no JSON object")
                yield _Line(where, fields)
    except OSError as error:
        raise TelemetryError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(text: bytes) -> Any:
    """The JSON value; None when there is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        value = _parse(path.read_bytes())
    except OSError as error:
        raise TelemetryError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(value, dict):
        raise TelemetryError(f"{path} is damaged: it holds no JSON object")
    return value


def _section(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = mapping.get(key)
    return value if isinstance(value, dict) else {}


def _checks(kind: type) -> dict[str, Callable[[object], bool]]:
    return {name: _check(hint) for name, hint in get_type_hints(kind).items()}


def _check(hint: Any) -> Callable[[object], bool]:
    """Whether a JSON value is of the annotated type; integers are ids, counts and stamps."""
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        return lambda value: value in choices
    types = choices or (hint,)
    if float in types:
        types += (int,)

    def fits(value: object) -> bool:
        if isinstance(value, int) and float not in types and not 0 <= value < 1 << 63:
            return False
        return isinstance(value, types) and not (
            isinstance(value, float) and not math.isfinite(value)
        )

    return fits


_CHECKS: Mapping[type, dict[str, Callable[[object], bool]]] = {kind: _checks(kind) for kind in ROWS}
_REQUIRED: Mapping[type, list[str]] = {
    kind: [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    for kind in ROWS
}
