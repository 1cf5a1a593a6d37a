"""`summary.json`: the headline numbers of a session, both tenants side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.telemetry.statistics import CAUSES, Statistics


def percentiles(ms: Iterable[float]) -> dict[str, float | None]:
    """p50, p95, p99 and max of durations in ms, to the microsecond; None without samples.

    Samples that are not finite are left out.
    """
    samples = np.fromiter(ms, dtype=np.float64)
    samples = samples[np.isfinite(samples)]
    if samples.size == 0:
        return {"p50": None, "p95": None, "p99": None, "max": None}
    p50, p95, p99 = (round(float(p), 3) for p in np.percentile(samples, (50, 95, 99)))
    return {"p50": p50, "p95": p95, "p99": p99, "max": round(float(samples.max()), 3)}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `Statistics` cannot know of a session; None where there is nothing to tell."""

    outcome: str
    """"ok", "interrupted", "error: ..." or "skipped: ..."."""
    chunks: int
    """Chunks per job when the session ended."""
    in_flight: int
    policy: str
    adapter: str
    gpu: Literal["wgpu", "dawn"]
    objects_created_in_loop: int
    clock_error_us: float | None = None
    """How far GPU stamps may be off on the CPU's clock; None without stamps."""
    loss_first: float | None = None
    loss_last: float | None = None
    psnr_first_db: float | None = None
    psnr_last_db: float | None = None

    def to_dict(
        self, statistics: Statistics, extra: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """The contract's keys, with those of `extra` (job, hz, camera, ...) behind them."""
        infer, train = (percentiles(statistics.run_ms[job]) for job in ("infer", "train"))
        contract = {
            "outcome": self.outcome,
            "frames": statistics.frames,
            "frame_ms": percentiles(statistics.frame_ms),
            "missed_per_1000": round(statistics.missed_per_1000, 3),
            "longest_stale_run": statistics.longest_stale_run,
            "chunks": self.chunks,
            "in_flight": self.in_flight,
            "policy": self.policy,
            "train_steps": statistics.runs["train"],
            "train_steps_per_s": round(statistics.per_second("train"), 3),
            "train_ms": {"p50": train["p50"], "p95": train["p95"]},
            "inferences": statistics.runs["infer"],
            "inferences_per_s": round(statistics.per_second("infer"), 3),
            "infer_ms": {"p50": infer["p50"], "p95": infer["p95"]},
            "eye_ms": percentiles(statistics.eye_ms),
            "gpu_share": {k: round(v, 4) for k, v in statistics.gpu_share().items()},
            "causes": {cause: statistics.causes[cause] for cause in CAUSES},
            "submit_ms": percentiles(statistics.submit_ms),
            "seconds": round(statistics.seconds, 3),
            "vsyncs": statistics.vsyncs,
            "stale": statistics.stale,
            "dropped": statistics.dropped,
            "chunks_submitted": statistics.chunks,
            "clock_error_us": self.clock_error_us,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "psnr_first_db": self.psnr_first_db,
            "psnr_last_db": self.psnr_last_db,
            "adapter": self.adapter,
            "gpu": self.gpu,
            "objects_created_in_loop": self.objects_created_in_loop,
        }
        return contract | {k: v for k, v in (extra or {}).items() if k not in contract}
