"""The run folder: `run.json`, `frames.jsonl`, `chunks.jsonl`, `quality.jsonl`, `summary.json`.

Rows are written by a background thread, so that a slow disk never delays a frame. A run that is
killed leaves `run.json` with the outcome "incomplete" and every row but those of the last half
second; the last line may be torn.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from app.telemetry.rows import ChunkRow, FrameRow, QualityRow, Row, row_line, to_json
from app.telemetry.statistics import Statistics
from engine.atomic import write_atomic
from engine.clock import Clock

FILES: Mapping[type[Row], str] = {
    FrameRow: "frames.jsonl",
    ChunkRow: "chunks.jsonl",
    QualityRow: "quality.jsonl",
}
FLUSH_EVERY_S = 0.5
MAX_PENDING_ROWS = 50_000
"""Rows kept for a disk that does not keep up; further ones are lost, and counted."""

log = logging.getLogger(__name__)


class TelemetryError(Exception):
    """The run folder cannot be used; the message says what to do."""


class Recorder:
    """Records a session into `out_dir`, or keeps only its `statistics` when that is None.

    `config`: what the run was asked to do, put into `run.json`; anything `to_json` takes. `clock`:
    how GPU stamps came to the CPU's clock, None without stamps. A record already in the folder is
    replaced. Raises `TelemetryError` at once when the folder cannot be created or written.

    Trouble with the disk later on stops the recording, never the caller: `warning` says so.
    """

    def __init__(
        self, out_dir: Path | None, config: Mapping[str, object], clock: Clock | None = None
    ) -> None:
        self.out_dir = out_dir
        self.statistics = Statistics()
        self.warning: str | None = None
        """What went wrong with the recording; None while all is well."""
        self._finished = False
        self._writer: _RowWriter | None = None
        self._run: dict[str, object] = {
            "outcome": "incomplete",
            "started": _utc_now(),
            "finished": None,
            "rows_lost": 0,
            "warning": None,
            "config": config,
            "clock": clock.to_json() if clock else None,
        }
        if out_dir is None:
            return
        try:
            out_dir.mkdir(parents=True, exist_ok=True)
            self._write("run.json", self._run)
            (out_dir / "summary.json").unlink(missing_ok=True)
            self._writer = _RowWriter(out_dir, self.disk_failed)
        except OSError as error:
            raise TelemetryError(
                f"cannot record to {out_dir}: {error.strerror or error}; choose another folder"
            ) from error

    def frame(self, row: FrameRow) -> None:
        """Record a frame, best once its `FrameResult` is known: rows are not amended later."""
        self.statistics.add_frame(row)
        if self._writer is not None:
            self._writer.put(row)

    def chunk(self, row: ChunkRow) -> None:
        """Record a chunk once it is complete, in order of submission."""
        self.statistics.add_chunk(row)
        if self._writer is not None:
            self._writer.put(row)

    def quality(self, row: QualityRow) -> None:
        """Record how well the decoder paints."""
        self.statistics.add_quality(row)
        if self._writer is not None:
            self._writer.put(row)

    def finish(
        self, outcome: str, summary: Mapping[str, object], clock: Clock | None = None
    ) -> None:
        """Write the remaining rows, `summary.json` and the final `run.json`; once only.

        `outcome`: "ok", "error: ..." or "skipped: ...". `clock`: calibrated at the end as well.
        Never raises for the disk: see `warning`.
        """
        if self._finished:
            return
        self._finished = True
        if self._writer is None:
            return
        self._writer.stop()
        final = {
            "outcome": outcome,
            "finished": _utc_now(),
            "rows_lost": self._writer.rows_lost,
            "warning": self.warning,
        }
        if clock is not None:
            final["clock"] = clock.to_json()
        try:
            self._write("summary.json", summary)
            self._write("run.json", self._run | final)
        except OSError as error:
            self.disk_failed(error)

    def disk_failed(self, error: OSError) -> None:
        """Note that a file could not be written; said once."""
        if self.warning is None:
            self.warning = f"recording to {self.out_dir} stopped: {error.strerror or error}"
            log.warning("%s", self.warning)

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        assert self.out_dir is not None
        write_atomic(self.out_dir / name, to_json(content, indent=2) + "\n")


class _RowWriter:
    """Appends rows to their files from a thread of its own, until the disk fails."""

    def __init__(self, out_dir: Path, failed: Callable[[OSError], None]) -> None:
        self._failed = failed
        self._refused = 0  # counted by the caller's thread
        self._unwritten = 0  # counted by the writer's
        self._pending: deque[tuple[type, bytes]] = deque()
        self._files: dict[type[Row], BinaryIO] = {}
        with contextlib.ExitStack() as opened:
            for kind, name in FILES.items():
                self._files[kind] = opened.enter_context(open(out_dir / name, "wb"))
            opened.pop_all()
        self._broken = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        """Queue a row; constant time, about 10 us.

        It becomes text here: a thread that worked on many rows at once would keep the interpreter
        from the frame loop, each of whose calls into a library gives it away.
        """
        if self._broken or len(self._pending) >= MAX_PENDING_ROWS:
            self._refused += 1
        else:
            self._pending.append((type(row), row_line(row).encode()))

    @property
    def rows_lost(self) -> int:
        """Rows that did not reach the disk for sure; final after `stop`."""
        return self._refused + self._unwritten + (len(self._pending) if self._broken else 0)

    def stop(self) -> None:
        """Write what is queued and close the files."""
        self._stop.set()
        self._thread.join()
        for file in self._files.values():
            # A buffer that could not be written fails again here; that has been said already.
            with contextlib.suppress(OSError):
                file.close()

    def _run(self) -> None:
        stopping = False
        while not stopping and not self._broken:
            stopping = self._stop.wait(FLUSH_EVERY_S)
            batch = [self._pending.popleft() for _ in range(len(self._pending))]
            try:
                self._append(batch)
            except OSError as error:
                self._broken = True
                self._unwritten = len(batch)
                self._failed(error)

    def _append(self, batch: list[tuple[type, bytes]]) -> None:
        for kind, file in self._files.items():
            file.write(b"".join(line for of, line in batch if of is kind))
            file.flush()


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
