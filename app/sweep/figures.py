"""Figures of an arm over all its runs, with 95 % bootstrap intervals.

Missed refreshes come in bursts, so single frames are no independent samples: runs are cut into
blocks of half a second, and whole blocks are drawn.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from app.sweep.trial import Trial
from app.telemetry.run_times import RunTimes

BLOCK_S = 0.5
RESAMPLES = 400
SEED = 20260801
JOBS = ("train", "infer")


@dataclass
class Block:
    """Half a second of a run."""

    seconds: float
    refreshes: int = 0
    missed: int = 0
    """Refreshes that did not show the frame drawn for them."""
    frame_ms: list[float] = field(default_factory=list)
    observed_ms: list[float] = field(default_factory=list)
    """From a frame's start to the observed completion of its eyes: known without GPU stamps."""
    eye_ms: list[float] = field(default_factory=list)
    gpu_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(JOBS, 0.0))
    runs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 0))
    run_ms: dict[str, list[float]] = field(default_factory=lambda: {job: [] for job in JOBS})
    """Latencies of runs that began and ended in the measured time."""


def blocks_of(trial: Trial) -> list[Block]:
    """Cut a run into blocks of equal length; a run shorter than two blocks is one."""
    length_ns = trial.end_ns - trial.begin_ns
    count = max(1, int(length_ns / 1e9 / BLOCK_S))
    blocks = [Block(length_ns / 1e9 / count) for _ in range(count)]

    def at(ns: int) -> Block:
        return blocks[min(count - 1, max(0, (ns - trial.begin_ns) * count // length_ns))]

    for frame in trial.frames:
        block = at(frame.wait_ns)
        block.refreshes += frame.refreshes
        block.missed += frame.missed_refreshes
        if frame.frame_ms is not None:
            block.frame_ms.append(frame.frame_ms)
        if frame.gpu_done_ns is not None:
            block.observed_ms.append((frame.gpu_done_ns - frame.wait_ns) / 1e6)
        if frame.eye_ms is not None:
            block.eye_ms.append(frame.eye_ms)
    run_times = RunTimes()
    for chunk in trial.chunks:
        at(chunk.submit_ns).gpu_ms[chunk.job] += chunk.gpu_ms or 0.0
        run = run_times.add(chunk)
        if run is None:
            continue
        block = at(run.end_ns)
        # One that began during the warm-up makes up for one cut off at the end.
        block.runs[chunk.job] += 1
        if run.ms is not None:
            block.run_ms[chunk.job].append(run.ms)
    return blocks


Metric = Callable[[Sequence[Block]], float | None]


def _percentile(values: Iterable[list[float]], q: float) -> float | None:
    pooled = [value for part in values for value in part]
    return float(np.percentile(pooled, q)) if pooled else None


def _missed(blocks: Sequence[Block]) -> float | None:
    refreshes = sum(block.refreshes for block in blocks)
    return 1e3 * sum(block.missed for block in blocks) / refreshes if refreshes else None


def _per_second(job: str) -> Metric:
    return lambda blocks: sum(b.runs[job] for b in blocks) / sum(b.seconds for b in blocks)


def _share(ms: Callable[[Block], float]) -> Metric:
    return lambda blocks: sum(map(ms, blocks)) / sum(1e3 * b.seconds for b in blocks)


METRICS: dict[str, Metric] = {
    "missed_per_1000": _missed,
    "frame_p50_ms": lambda blocks: _percentile((b.frame_ms for b in blocks), 50),
    "frame_p99_ms": lambda blocks: _percentile((b.frame_ms for b in blocks), 99),
    "observed_frame_p50_ms": lambda blocks: _percentile((b.observed_ms for b in blocks), 50),
    "eye_ms": lambda blocks: _percentile((b.eye_ms for b in blocks), 50),
    "render_share": _share(lambda b: sum(b.eye_ms)),
    "train_share": _share(lambda b: b.gpu_ms["train"]),
    "infer_share": _share(lambda b: b.gpu_ms["infer"]),
    "train_steps_per_s": _per_second("train"),
    "infer_per_s": _per_second("infer"),
    "train_ms": lambda blocks: _percentile((b.run_ms["train"] for b in blocks), 50),
    "infer_ms": lambda blocks: _percentile((b.run_ms["infer"] for b in blocks), 50),
}


@dataclass(frozen=True)
class Figures:
    """Value and interval of each metric over all blocks of an arm; None where nothing is known."""

    values: dict[str, float | None]
    ci95: dict[str, tuple[float, float] | None]
    frames: int


def figures_of(trials: Sequence[Trial]) -> Figures:
    """Figures over the runs of one arm."""
    blocks = [block for trial in trials for block in blocks_of(trial)]
    values = {name: _rounded(metric(blocks)) for name, metric in METRICS.items()}
    return Figures(
        values,
        {name: _interval(metric, blocks) for name, metric in METRICS.items()},
        sum(len(trial.frames) for trial in trials),
    )


def _interval(metric: Metric, blocks: Sequence[Block]) -> tuple[float, float] | None:
    if metric(blocks) is None or len(blocks) < 2:
        return None

    def of(drawn: np.ndarray) -> float:
        value = metric([blocks[int(index)] for index in drawn])
        return math.nan if value is None else value

    indices = np.arange(len(blocks))
    rng = np.random.default_rng(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal values throughout are no trouble here
        drawn = stats.bootstrap(
            (indices,),
            of,
            vectorized=False,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=rng,
        ).bootstrap_distribution
    known = drawn[np.isfinite(drawn)]
    if known.size == 0:
        return None
    low, high = np.percentile(known, (2.5, 97.5))
    return round(float(low), 4), round(float(high), 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
