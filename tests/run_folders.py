"""Run and sweep folders as a session would leave them, from a small model of the queue."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from app.telemetry.rows import ChunkRow, FrameRow, row_line
from app.telemetry.statistics import Statistics

START_NS = 5_000_000_000
LEAD_NS = 1_500_000


@dataclass
class RunModel:
    """Renders on a first in, first out GPU beside `in_flight` chunks a frame; times in ms.

    `slow`: frames before which a chunk takes `slow_ms` instead, so that they come late.
    """

    chunks: int = 4
    in_flight: int = 1
    policy: str = "fixed"
    job: str = "both"
    hz: float = 90.0
    frames: int = 120
    eye_ms: float = 5.0
    chunk_ms: float = 3.0
    slow: tuple[int, ...] = (40, 80)
    slow_ms: float = 18.0
    stamps: bool = True
    seed: int = 0
    frame_rows: list[FrameRow] = field(default_factory=list)
    chunk_rows: list[ChunkRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        period = round(1e9 / self.hz)
        names = ("train", "infer") if self.job == "both" else (self.job,)
        free, serial = START_NS, 0
        ends: list[int] = []  # of the chunks
        for number in range(1, self.frames + 1):
            display = START_NS + (number + 1) * period
            wait, due = display - period - LEAD_NS, display - LEAD_NS
            submit = wait + 700_000
            behind = serial if ends and ends[-1] > submit else None
            begin = max(submit + 50_000, free)
            end = begin + round(1e6 * self.eye_ms * rng.uniform(0.9, 1.1))
            missed = max(0, -(-(end - due) // period))
            self.frame_rows.append(
                FrameRow(
                    id=number,
                    predicted_display_ns=display,
                    due_ns=due,
                    wait_ns=wait,
                    begin_ns=wait + 200_000,
                    locate_ns=wait + 600_000,
                    submit_ns=submit,
                    end_ns=submit + 150_000,
                    eye_begin_ns=begin if self.stamps else None,
                    eye_end_ns=end if self.stamps else None,
                    gpu_done_ns=end + 90_000,
                    frame_ms=(end - wait) / 1e6,
                    interval_ms=None if number == 1 else period / 1e6,
                    eye_ms=(end - begin) / 1e6,
                    submit_ms=0.1,
                    slack_ms=(due - end) / 1e6,
                    missed=missed,
                    displayed_ns=display + missed * period,
                    in_flight_at_submit=sum(end > submit for end in ends[-self.in_flight :]),
                    behind_chunk=behind,
                    cause="" if missed == 0 else "chunk" if behind is not None else "render",
                    withheld="frame quota used",
                    margin_ms=1.5 if self.policy == "deadline" else None,
                    camera_age_ms=12.5,
                )
            )
            free = end
            given, first = submit + 200_000, serial
            while (flying := sum(end > given for end in ends[-self.in_flight :])) < self.in_flight:
                if serial - first == self.in_flight:
                    break
                run, index = divmod(serial, self.chunks)
                slow = number + 1 in self.slow and serial == first
                ms = self.slow_ms if slow else self.chunk_ms * rng.uniform(0.9, 1.1)
                serial += 1
                chunk_begin = max(given + 30_000, free)
                free = chunk_begin + round(1e6 * ms)
                ends.append(free)
                self.chunk_rows.append(
                    ChunkRow(
                        id=serial,
                        job=cast(Literal["train", "infer"], names[run % len(names)]),
                        job_id=run // len(names) + 1,
                        index=index,
                        of=self.chunks,
                        dispatches=12,
                        frame_id=number,
                        submit_ns=given,
                        begin_ns=chunk_begin if self.stamps else None,
                        end_ns=free if self.stamps else None,
                        gpu_ms=ms,
                        predicted_ms=self.chunk_ms,
                        done_ns=free + 80_000,
                        submit_ms=0.05,
                        in_flight=flying + 1,
                        reason="frame quota",
                    )
                )
                given += 60_000
            run_ms = sum(row.gpu_ms or 0.0 for row in self.chunk_rows[first:])
            self.frame_rows[-1] = replace(
                self.frame_rows[-1], chunks_run=serial - first, chunk_gpu_ms=run_ms
            )

        self._show(period)

    def _show(self, period: int) -> None:
        """The newest complete image is shown: a late frame may be overtaken, and is dropped."""
        rows = self.frame_rows
        times = [row.displayed_ns or 0 for row in rows]
        last = times[0] - period if times else 0
        for index, row in enumerate(rows):
            dropped = times[index] >= min(times[index + 1 :], default=times[index] + 1)
            stale = 0 if dropped else (times[index] - last) // period - 1
            shown = None if dropped else times[index]
            rows[index] = replace(row, displayed_ns=shown, stale_run=stale)
            last = last if dropped else times[index]

    @property
    def options(self) -> dict[str, Any]:
        names = ("chunks", "in_flight", "policy", "job", "hz")
        return {name: getattr(self, name) for name in names}

    def write(self, path: Path, outcome: str = "ok") -> Path:
        """Leave the folder; without a summary when the outcome is "incomplete"."""
        path.mkdir(parents=True)
        stamp = {"offset_ns": -2_000_000, "error_us": 12.5, "at_ns": START_NS - 10_000_000}
        clock = {"start": stamp, "end": None, "drift_ppm": None, "error_us": 12.5}
        run = {
            "outcome": outcome,
            "started": "2026-11-29T10:00:00+00:00",
            "finished": None if outcome == "incomplete" else "2026-11-29T10:01:00+00:00",
            "rows_lost": 0,
            "warning": None,
            "config": {
                "command": "preview",
                "options": self.options,
                "adapter": "Example <GPU> & Co",
                "driver": "Vulkan 1.3",
                "encoder": "random",
                "revision": "abc1234",
            },
            "clock": clock if self.stamps else None,
        }
        (path / "run.json").write_text(json.dumps(run))
        (path / "frames.jsonl").write_text("".join(map(row_line, self.frame_rows)))
        (path / "chunks.jsonl").write_text("".join(map(row_line, self.chunk_rows)))
        if outcome != "incomplete":
            (path / "summary.json").write_text(json.dumps({"outcome": outcome, "hz": self.hz}))
        return path


def write_sweep(path: Path, models: list[RunModel], repeats: int = 2) -> Path:
    """A sweep folder with one arm for each model, run with several seeds."""
    arms = []
    for model in models:
        name = f"{model.job}-k{model.chunks}-n{model.in_flight}-{model.policy}-{model.hz:g}hz"
        runs = [replace_seed(model, seed) for seed in range(repeats)]
        folders = [f"arms/{name}-r{n}" for n in range(1, repeats + 1)]
        for run, folder in zip(runs, folders, strict=True):
            run.write(path / folder)
        arms.append({"name": name, "folders": folders, **model.options, **_figures(runs)})
    job = models[0].job
    alone = {"missed_per_1000": 0.0, "frame_p50_ms": 6.0, "frame_p99_ms": 7.5, "render_share": 0.45}
    cost = {"missed_per_1000": 8.0, "train_steps_per_s": 22.5, "ci95": {}}
    worker = {"job": job, "chunks": 4, "in_flight": 1, "worker_ms": 11.0, "train_steps_per_s": 60.0}
    sweep = {"outcome": "ok", "config": {}, "order": []}
    summary = {
        "outcome": "ok",
        "adapter": "Example <GPU> & Co",
        "driver": "Vulkan 1.3",
        "revision": "abc1234",
        "seconds": 10.0,
        "repeats": repeats,
        "baselines": {
            "solo_render": [{"hz": models[0].hz, **alone, "ci95": {"missed_per_1000": [0, 0.4]}}],
            "solo_worker": [worker],
            "no_telemetry": [{"arm": arms[0]["name"], "with": cost, "without": cost}],
        },
        "arms": arms,
    }
    (path / "sweep.json").write_text(json.dumps(sweep))
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def replace_seed(model: RunModel, seed: int) -> RunModel:
    """The same setting with other noise."""
    return replace(model, seed=seed, frame_rows=[], chunk_rows=[])


def _figures(runs: list[RunModel]) -> dict[str, Any]:
    statistics = Statistics()
    for row in (row for run in runs for row in run.frame_rows):
        statistics.add_frame(row)
    for chunk in (chunk for run in runs for chunk in run.chunk_rows):
        statistics.add_chunk(chunk)
    seconds = sum(len(run.frame_rows) / run.hz for run in runs)
    job = "train" if runs[0].job == "train" else "infer"
    values = {
        "missed_per_1000": statistics.missed_per_1000,
        "frame_p50_ms": float(np.median(statistics.frame_ms)),
        "frame_p99_ms": float(np.percentile(statistics.frame_ms, 99)),
        "train_steps_per_s": statistics.runs["train"] / seconds,
        "infer_per_s": statistics.runs["infer"] / seconds,
        "worker_ms": float(np.median(statistics.run_ms[job])),
        "isolated_worker_ms": 9.0 + 0.2 * runs[0].chunks,
        "render_share": 0.45,
        "train_share": 0.2,
        "infer_share": 0.1,
    }
    ci95 = {name: [0.9 * value, 1.1 * value] for name, value in values.items()}
    return {**values, "allowed_steps_per_s": 30.0, "frames": statistics.frames, "ci95": ci95}
