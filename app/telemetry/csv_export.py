"""The rows of a run as CSV, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path

from app.telemetry.folder import RunFolder
from app.telemetry.rows import ChunkRow, FrameRow, QualityRow, Row
from engine.atomic import open_atomic


def write_csv(folder: RunFolder, out_dir: Path | None = None) -> list[Path]:
    """Write `frames.csv`, `chunks.csv` and, where there are such rows, `quality.csv`; their paths.

    Into the run folder by default. One column per field of the row, named alike; empty where not
    known. Raises `TelemetryError` for damaged rows and `OSError` for the disk.
    """
    out_dir = out_dir or folder.path
    frames, chunks = out_dir / "frames.csv", out_dir / "chunks.csv"
    _write(frames, FrameRow, folder.frames())
    _write(chunks, ChunkRow, folder.chunks())
    figures = list(folder.quality())
    if not figures:
        return [frames, chunks]
    quality = out_dir / "quality.csv"
    _write(quality, QualityRow, figures)
    return [frames, chunks, quality]


def _write(path: Path, kind: type, rows: Iterable[Row]) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    with open_atomic(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(names)
        for row in rows:
            writer.writerow([getattr(row, name) for name in names])
        text.detach()
