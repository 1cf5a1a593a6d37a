"""`summary.json` of a sweep: every arm's figures beside what they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.sweep.arms import Arm, Kind
from app.sweep.figures import Figures, figures_of
from app.sweep.trial import Trial

Trials = Mapping[Arm, Sequence[Trial]]
"""Finished runs by arm; arms without any are missing."""


def summarize(trials: Trials) -> dict[str, object]:
    """`arms` and `baselines`, as docs/co-tenancy.md describes them."""
    figures = {arm: figures_of(runs) for arm, runs in trials.items()}
    return {
        "baselines": {
            "solo_render": [_render(arm, f) for arm, f in _of(figures, Kind.RENDER)],
            "solo_worker": [_worker(arm, f) for arm, f in _of(figures, Kind.WORKER)],
            "no_telemetry": [_untraced(arm, f, figures) for arm, f in _of(figures, Kind.UNTRACED)],
        },
        "arms": [_shared(arm, f, trials, figures) for arm, f in _of(figures, Kind.SHARED)],
    }


def _of(figures: Mapping[Arm, Figures], kind: Kind) -> list[tuple[Arm, Figures]]:
    return [(arm, f) for arm, f in figures.items() if arm.kind is kind]


def _render(arm: Arm, f: Figures) -> dict[str, object]:
    names = ("missed_per_1000", "frame_p50_ms", "frame_p99_ms", "eye_ms", "render_share")
    return {"hz": arm.hz, "frames": f.frames, **_pick(f, names)}


def _worker(arm: Arm, f: Figures) -> dict[str, object]:
    rates = ("train_ms", "infer_ms", "train_steps_per_s", "infer_per_s")
    return {
        "job": arm.job,
        "chunks": arm.chunks,
        "in_flight": arm.in_flight,
        "worker_ms": f.values[_worker_metric(arm.job)],
        "steps_per_s": f.values["train_steps_per_s" if arm.job != "infer" else "infer_per_s"],
        **_pick(f, (*rates, "train_share", "infer_share")),
    }


def _untraced(arm: Arm, f: Figures, figures: Mapping[Arm, Figures]) -> dict[str, object]:
    """The untraced arm beside the same one with telemetry."""
    names = ("missed_per_1000", "observed_frame_p50_ms", "train_steps_per_s", "infer_per_s")
    traced = Arm(Kind.SHARED, arm.job, arm.chunks, arm.in_flight, arm.policy, arm.hz)
    with_it = figures.get(traced)
    return {
        "arm": traced.name,
        "without": _pick(f, names),
        "with": _pick(with_it, names) if with_it is not None else None,
    }


def _shared(
    arm: Arm, f: Figures, trials: Trials, figures: Mapping[Arm, Figures]
) -> dict[str, object]:
    metric = _worker_metric(arm.job)
    alone = _alone(arm, figures)
    return {
        "name": arm.name,
        "folders": [trial.folder for trial in trials[arm] if trial.folder is not None],
        "chunks": arm.chunks,
        "in_flight": arm.in_flight,
        "policy": arm.policy,
        "job": arm.job,
        "hz": arm.hz,
        "frames": f.frames,
        **f.values,
        "worker_ms": f.values[metric],
        "isolated_worker_ms": alone.values[metric] if alone is not None else None,
        "allowed_steps_per_s": _allowed(arm, figures),
        "ci95": {**f.ci95, "worker_ms": f.ci95[metric]},
    }


def _worker_metric(job: str) -> str:
    """The latency that is the job's: a training step's, else an inference's."""
    return "train_ms" if job == "train" else "infer_ms"


def _alone(arm: Arm, figures: Mapping[Arm, Figures]) -> Figures | None:
    """The network alone in the same setting; policy and refresh rate mean nothing to it."""
    setting = (arm.job, arm.chunks, arm.in_flight)
    for other, f in _of(figures, Kind.WORKER):
        if (other.job, other.chunks, other.in_flight) == setting:
            return f
    return None


def _allowed(arm: Arm, figures: Mapping[Arm, Figures]) -> float | None:
    """Training steps/s that fit beside the renderer: its idle share of the best rate alone."""
    rates = [
        f.values["train_steps_per_s"]
        for other, f in _of(figures, Kind.WORKER)
        if other.job == arm.job and arm.job != "infer"
    ]
    shares = [f.values["render_share"] for r, f in _of(figures, Kind.RENDER) if r.hz == arm.hz]
    known_rates = [rate for rate in rates if rate is not None]
    if not known_rates or not shares or shares[0] is None:
        return None
    return round(max(known_rates) * max(0.0, 1.0 - shares[0]), 4)


def _pick(f: Figures, names: Sequence[str]) -> dict[str, object]:
    return {name: f.values[name] for name in names} | {
        "ci95": {name: f.ci95[name] for name in names}
    }
