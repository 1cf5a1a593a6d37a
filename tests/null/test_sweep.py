"""A sweep without a device: options, arms and their order, figures with intervals, summary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import UsageError
from app.sweep.arms import Arm, Kind, arms_of, shuffled
from app.sweep.config import SweepConfig
from app.sweep.figures import METRICS, blocks_of, figures_of
from app.sweep.summary import summarize
from app.sweep.trial import Trial
from app.telemetry.rows import ChunkRow, FrameRow, to_json
from tests.command_line import fails

MS = 1_000_000
BEGIN_NS = 7_000 * MS
SHARED = Arm(Kind.SHARED, "both", 2, 1, "fixed", 90.0)

# -- options --


def test_lists_are_taken_apart() -> None:
    config = SweepConfig(
        chunks="1, 4,2,4", in_flight="3", policy="deadline,fixed", job="infer", hz="72,90.5"
    )
    config.check()
    assert config.chunk_counts == (1, 4, 2) and config.bounds == (3,)
    assert config.policies == ("deadline", "fixed") and config.jobs == ("infer",)
    assert config.rates == (72.0, 90.5)


def test_the_defaults_are_possible() -> None:
    SweepConfig().check()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"chunks": "1,0"}, "--chunks must be at least 1 each, not 0"),
        ({"chunks": ""}, "--chunks must be a list such as 1,2,4, not ''"),
        ({"chunks": "1,,2"}, "--chunks must be a list"),
        ({"chunks": "two"}, "--chunks must be numbers such as 1,2,4, not 'two'"),
        ({"chunks": "1.5"}, "--chunks must be numbers"),
        ({"in_flight": "-1"}, "--in-flight must be at least 1 each, not -1"),
        ({"policy": "fixed,lazy"}, "--policy takes fixed, greedy, deadline, not 'lazy'"),
        ({"job": "none"}, "--job takes train, infer, both, not 'none'"),
        ({"hz": "90,0"}, "--hz must be 1 to 1000, not 0"),
        ({"hz": "nan"}, "--hz must be 1 to 1000, not nan"),
        ({"hz": "fast"}, "--hz must be numbers"),
        ({"arms": "train-k4-n2-lazy"}, "--arms must be a list such as train-k4-n2-fixed"),
        ({"arms": "train-k4-n2-fixed,"}, "--arms must be a list"),
        ({"arms": "none-k4-n2-fixed"}, "--arms must be a list"),
        ({"arms": "train-k0-n2-fixed"}, "--arms must have 1 chunk and 1 in flight at least"),
        ({"arms": "both-k2-n0-greedy"}, "--arms must have 1 chunk and 1 in flight at least"),
        ({"seconds": 0.0}, "--seconds must be above 0, not 0"),
        ({"seconds": float("inf")}, "--seconds must be above 0, not inf"),
        ({"warm_up": -1.0}, "--warm-up must be at least 0, not -1"),
        ({"repeats": 0}, "--repeats must be at least 1, not 0"),
        ({"render_share": 100.0}, "--render-share must be 0 to 100 percent, not 100"),
        ({"render_share": 60.0, "scene_load": 5}, "exclude each other"),
        ({"eye_size": 1}, "--eye-size must be 16 to 4096"),
    ],
)
def test_an_impossible_value_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        SweepConfig(**options).check()
    assert complaint in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--chunks", "0"), "--chunks must be at least 1 each, not 0"),
        (("--policy", "lazy"), "--policy takes fixed, greedy, deadline"),
        (("--seconds", "soon"), "--seconds"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in fails(capsys, 2, "sweep", *arguments)


# -- arms --

lists: dict[str, st.SearchStrategy[list[Any]]] = {
    "chunks": st.lists(st.integers(1, 999), min_size=1, max_size=4),
    "in_flight": st.lists(st.integers(1, 9), min_size=1, max_size=3),
    "policy": st.lists(st.sampled_from(["fixed", "greedy", "deadline"]), min_size=1),
    "job": st.lists(st.sampled_from(["train", "infer", "both"]), min_size=1),
    "hz": st.lists(st.floats(1, 1000), min_size=1, max_size=3),
}
configs = st.fixed_dictionaries(
    {name: values.map(lambda v: ",".join(map(str, v))) for name, values in lists.items()}
).map(lambda options: SweepConfig(**options))  # type: ignore[arg-type]


@given(configs)
def test_arms_are_all_combinations_and_their_baselines(config: SweepConfig) -> None:
    config.check()
    arms = arms_of(config)
    shared = [arm for arm in arms if arm.kind is Kind.SHARED]
    found = {(a.job, a.chunks, a.in_flight, a.policy, a.hz) for a in shared}
    assert found == {
        (job, chunks, bound, policy, hz)
        for job in config.jobs
        for chunks in config.chunk_counts
        for bound in config.bounds
        for policy in config.policies
        for hz in config.rates
    }
    assert len(found) == len(shared)
    assert [a.hz for a in arms if a.kind is Kind.RENDER] == list(config.rates)
    workers = {(a.job, a.chunks, a.in_flight) for a in arms if a.kind is Kind.WORKER}
    assert workers == {(job, chunks, bound) for job, chunks, bound, *_ in found}
    (untraced,) = (arm for arm in arms if arm.kind is Kind.UNTRACED)
    assert replace(untraced, kind=Kind.SHARED) in shared


def test_arms_can_be_named_one_by_one() -> None:
    config = SweepConfig(
        arms="train-k4-n8-deadline, both-k1-n2-fixed,train-k04-n8-deadline", chunks="3", hz="90,120"
    )
    config.check()
    names = [arm.name for arm in arms_of(config)]
    assert names[:4] == ["render-90hz", "render-120hz", "worker-train-k4-n8", "worker-both-k1-n2"]
    assert names[5:] == [
        "train-k4-n8-deadline-90hz",
        "both-k1-n2-fixed-90hz",
        "train-k4-n8-deadline-120hz",
        "both-k1-n2-fixed-120hz",
    ]
    assert names[4].removeprefix("untraced-") in names[5:]


@given(configs)
def test_names_are_unique_and_fit_for_folders(config: SweepConfig) -> None:
    names = [arm.name for arm in arms_of(config)]
    assert len(set(map(str.lower, names))) == len(names)
    for name in names:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*[a-z0-9]", name) and len(name) < 100


def test_names_read_well() -> None:
    kinds = (Kind.SHARED, Kind.RENDER, Kind.WORKER, Kind.UNTRACED)
    assert [replace(SHARED, kind=kind).name for kind in kinds] == [
        "both-k2-n1-fixed-90hz",
        "render-90hz",
        "worker-both-k2-n1",
        "untraced-both-k2-n1-fixed-90hz",
    ]
    assert replace(SHARED, hz=72.5).name == "both-k2-n1-fixed-72.5hz"


def test_the_order_is_every_arm_once_per_repeat_shuffled_and_reproducible() -> None:
    arms = arms_of(SweepConfig())
    order = shuffled(arms, 4, seed=1)
    repeats = [order[n : n + len(arms)] for n in range(0, len(order), len(arms))]
    assert len(repeats) == 4
    for number, repeat in enumerate(repeats, start=1):
        assert {r for _, r in repeat} == {number}
        assert sorted(a.name for a, _ in repeat) == sorted(a.name for a in arms)
    orders = [tuple(arm for arm, _ in repeat) for repeat in repeats]
    assert len({*orders, tuple(arms)}) == 5
    assert shuffled(arms, 4, seed=1) == order != shuffled(arms, 4, seed=2)


# -- figures --


def frame(at_ms: float, **known: Any) -> FrameRow:
    wait_ns = BEGIN_NS + round(at_ms * MS)
    defaults = {"displayed_ns": wait_ns + 12 * MS, "missed": 0, "stale_run": 0}
    return FrameRow(
        id=1,
        predicted_display_ns=wait_ns + 12 * MS,
        due_ns=wait_ns + 10 * MS,
        wait_ns=wait_ns,
        **(defaults | known),
    )


def chunk(job: Any, run: int, index: int, at_ms: float, end_ms: float, **known: Any) -> ChunkRow:
    """One of two, submitted and ended so long after the begin of the measured time."""
    return ChunkRow(
        id=1, job=job, job_id=run, index=index, of=2, dispatches=1, frame_id=1,
        submit_ns=BEGIN_NS + round(at_ms * MS), end_ns=BEGIN_NS + round(end_ms * MS),
        in_flight=1, reason="", **known,
    )  # fmt: skip


def trial(
    frames: Sequence[FrameRow] = (), chunks: Sequence[ChunkRow] = (), *, seconds: float = 2.0
) -> Trial:
    end_ns = BEGIN_NS + round(1e9 * seconds)
    return Trial(SHARED, "arms/a-r1", BEGIN_NS, end_ns, list(frames), list(chunks))


@pytest.mark.parametrize(("seconds", "count"), [(0.2, 1), (0.9, 1), (1.0, 2), (2.2, 4), (10.0, 20)])
def test_blocks_are_equal_and_cover_the_run(seconds: float, count: int) -> None:
    frames = [frame(ms, frame_ms=1.0) for ms in np.arange(0.0, 1e3 * seconds, 7.3)]
    blocks = blocks_of(trial(frames, seconds=seconds))
    assert len(blocks) == count
    assert [block.seconds for block in blocks] == pytest.approx([seconds / count] * count)
    assert sum(len(block.frame_ms) for block in blocks) == len(frames)
    sizes = [len(block.frame_ms) for block in blocks]
    assert max(sizes) - min(sizes) <= 1


def test_figures_of_frames() -> None:
    first = [
        frame(0, frame_ms=4.0, eye_ms=2.0, gpu_done_ns=BEGIN_NS + 5 * MS),
        frame(600, frame_ms=6.0, eye_ms=4.0, missed=1, stale_run=1),
        frame(1200, missed=2, stale_run=2, displayed_ns=None),  # dropped: nothing was shown
        frame(1900, frame_ms=8.0, eye_ms=6.0, missed=0, stale_run=3),
    ]
    second = [frame(0, frame_ms=10.0, eye_ms=8.0)]
    figures = figures_of([trial(first), trial(second)])
    assert figures.frames == 5
    values = figures.values
    assert values["missed_per_1000"] == 625.0  # 4 refreshes showed nothing new, 1 a late frame
    assert values["frame_p50_ms"] == 7.0
    assert values["frame_p99_ms"] == pytest.approx(9.94)
    assert values["observed_frame_p50_ms"] == 5.0
    assert values["eye_ms"] == 5.0
    assert values["render_share"] == 0.005  # 20 ms of 4 s
    assert values["train_steps_per_s"] == values["infer_per_s"] == 0.0
    assert values["train_ms"] is None and figures.ci95["train_ms"] is None


def test_figures_of_chunks() -> None:
    chunks = [
        # Begun during the warm-up: counts as a step, but its latency is not known.
        chunk("train", 1, 1, 10, 20, gpu_ms=8.0),
        chunk("train", 2, 0, 100, 120, gpu_ms=10.0),
        chunk("infer", 1, 0, 200, 210, gpu_ms=4.0),
        chunk("train", 2, 1, 300, 340, gpu_ms=30.0),
        chunk("infer", 1, 1, 400, 420, gpu_ms=None),
        chunk("train", 3, 0, 1500, 1520, gpu_ms=12.0),
        chunk("train", 3, 1, 1900, 2100, gpu_ms=20.0),  # ends after the measured time
        chunk("infer", 2, 0, 1990, 1995, gpu_ms=4.0),  # cut off
    ]
    values = figures_of([trial(chunks=chunks)]).values
    assert values["train_steps_per_s"] == 1.5 and values["infer_per_s"] == 0.5
    assert values["train_ms"] == 420.0  # of 240 and 600
    assert values["infer_ms"] == 220.0
    assert values["train_share"] == 0.04 and values["infer_share"] == 0.004
    assert values["missed_per_1000"] is None and values["frame_p99_ms"] is None


def test_a_latency_without_stamps_ends_with_the_observed_completion() -> None:
    rows = [chunk("train", 1, 0, 0, 0), chunk("train", 1, 1, 30, 0)]
    rows = [replace(row, end_ns=None, done_ns=row.submit_ns + 20 * MS) for row in rows]
    assert figures_of([trial(chunks=rows)]).values["train_ms"] == 50.0


def noisy(rng: np.random.Generator, seconds: float, job: str = "train") -> Trial:
    """90 frames/s that miss in bursts, beside runs of about 20 ms; "both": a job each in turn."""
    frames, chunks, burst = [], [], 0
    for number in range(round(90 * seconds)):
        burst = max(burst - 1, 0) or (5 if rng.random() < 0.02 else 0)
        known = {"missed": 1, "stale_run": 1} if burst else {}
        frame_ms = float(rng.normal(6.0, 1.0))
        frames.append(frame(number * 1e3 / 90, frame_ms=frame_ms, eye_ms=frame_ms - 1, **known))
        at = number * 1e3 / 90
        end = at + float(rng.normal(20.0, 2.0))
        name = ("train", "infer")[number % 2] if job == "both" else job
        chunks.append(chunk(name, number, 0, at, at + 1, gpu_ms=3.0))
        chunks.append(chunk(name, number, 1, at + 5, end, gpu_ms=3.0))
    return trial(frames, chunks, seconds=seconds)


def test_intervals_contain_the_value_and_shrink_with_more_blocks(rng: np.random.Generator) -> None:
    few, many = (figures_of([noisy(rng, seconds)]) for seconds in (3.0, 60.0))
    for figures in (few, many):
        for name, value in figures.values.items():
            interval = figures.ci95[name]
            assert (interval is None) == (value is None), name
            if value is not None and interval is not None:
                assert interval[0] <= value <= interval[1], name
    for name in ("missed_per_1000", "frame_p50_ms", "render_share", "train_ms"):
        widths = [f.ci95[name][1] - f.ci95[name][0] for f in (few, many)]  # type: ignore[index]
        assert 0 < widths[1] < 0.6 * widths[0], name


def test_an_interval_is_about_as_wide_as_theory_says(rng: np.random.Generator) -> None:
    blocks = 100
    shares = rng.uniform(0.1, 0.5, blocks)
    rows = [frame(500 * n + 1, eye_ms=500 * share) for n, share in enumerate(shares)]
    low, high = figures_of([trial(rows, seconds=blocks / 2)]).ci95["render_share"]  # type: ignore[misc]
    expected = 2 * 1.96 * shares.std() / np.sqrt(blocks)
    assert high - low == pytest.approx(expected, rel=0.2)


def test_intervals_are_reproducible_and_need_two_blocks(rng: np.random.Generator) -> None:
    run = noisy(rng, 2.0)
    assert figures_of([run]).ci95 == figures_of([run]).ci95
    short = figures_of([noisy(rng, 0.4)])
    assert short.values["frame_p50_ms"] is not None
    assert set(short.ci95.values()) == {None}


def test_equal_blocks_leave_no_doubt() -> None:
    run = trial([frame(ms, frame_ms=4.0, eye_ms=5.0) for ms in range(0, 2000, 50)])
    figures = figures_of([run])
    assert figures.ci95["frame_p50_ms"] == (4.0, 4.0)
    assert figures.ci95["missed_per_1000"] == (0.0, 0.0)
    assert figures.ci95["render_share"] == (0.1, 0.1)


# -- summary --

ARM_KEYS = """chunks in_flight policy job hz missed_per_1000 frame_p99_ms train_steps_per_s
    worker_ms isolated_worker_ms ci95""".split()
CONFIG = SweepConfig(chunks="1,2", in_flight="1", policy="fixed,deadline", job="train,infer,both")


Trials = dict[Arm, list[Trial]]


@pytest.fixture(scope="module")
def trials() -> Trials:
    """Two runs of each arm."""
    rng = np.random.default_rng(11)
    trials: Trials = {}
    for arm in arms_of(CONFIG):
        traced = arm.kind is not Kind.UNTRACED
        run = noisy(rng, 1.0, arm.job)
        run.arm, run.folder = arm, f"arms/{arm.name}-r1" if traced else None
        if arm.kind is Kind.RENDER:
            run.chunks = []
        if arm.kind is Kind.WORKER:
            run.frames = []
        trials[arm] = [run, replace(run, folder=f"arms/{arm.name}-r2" if traced else None)]
    return trials


@pytest.fixture(scope="module")
def summary(trials: Trials) -> dict[str, Any]:
    """As a reader of summary.json gets it."""
    content: dict[str, Any] = json.loads(to_json(summarize(trials)))
    return content


def test_the_summary_holds_every_arm_with_the_promised_keys(
    trials: Trials, summary: dict[str, Any]
) -> None:
    arms = summary["arms"]
    assert [arm["name"] for arm in arms] == [a.name for a in trials if a.kind is Kind.SHARED]
    assert len(arms) == 12
    for arm in arms:
        assert not set(ARM_KEYS) - arm.keys()
        assert set(METRICS) | {"worker_ms"} == arm["ci95"].keys()
        assert arm["folders"] == [f"arms/{arm['name']}-r{n}" for n in (1, 2)]
        assert arm["frames"] == 180 and arm["hz"] == 90.0
    by_name = {arm["name"]: arm for arm in arms}
    one = by_name["train-k2-n1-deadline-90hz"]
    figures = figures_of(trials[Arm(Kind.SHARED, "train", 2, 1, "deadline", 90.0)])
    assert {name: one[name] for name in figures.values} == figures.values
    assert one["worker_ms"] == figures.values["train_ms"]
    alone = figures_of(trials[Arm(Kind.WORKER, "train", 2, 1, "fixed", 90.0)])
    assert one["isolated_worker_ms"] == alone.values["train_ms"]
    assert (one["chunks"], one["in_flight"], one["policy"], one["job"]) == (
        2,
        1,
        "deadline",
        "train",
    )


def test_the_workers_latency_is_that_of_its_job(summary: dict[str, Any]) -> None:
    for arm in summary["arms"]:
        metric = {"train": "train_ms", "infer": "infer_ms", "both": "infer_ms"}[arm["job"]]
        assert arm["worker_ms"] == arm[metric] is not None
        assert arm["ci95"]["worker_ms"] == arm["ci95"][metric]
        assert arm["isolated_worker_ms"] is not None
    both = [arm for arm in summary["arms"] if arm["job"] == "both"]
    assert all(arm["train_ms"] != arm["infer_ms"] for arm in both)


def test_what_the_idle_gpu_allows(summary: dict[str, Any]) -> None:
    (render,) = summary["baselines"]["solo_render"]
    workers = summary["baselines"]["solo_worker"]
    for arm in summary["arms"]:
        rates = [w["train_steps_per_s"] for w in workers if w["job"] == arm["job"]]
        expected = max(rates) * (1 - render["render_share"])
        assert arm["allowed_steps_per_s"] == (
            None if arm["job"] == "infer" else pytest.approx(expected, abs=1e-4)
        )


def test_baselines(summary: dict[str, Any]) -> None:
    baselines = summary["baselines"]
    assert [(r["hz"], r["frames"]) for r in baselines["solo_render"]] == [(90.0, 180)]
    settings = [(w["job"], w["chunks"], w["in_flight"]) for w in baselines["solo_worker"]]
    assert settings == [(job, k, 1) for job in ("train", "infer", "both") for k in (1, 2)]
    for worker in baselines["solo_worker"]:
        rate = "infer_per_s" if worker["job"] == "infer" else "train_steps_per_s"
        assert worker["steps_per_s"] == worker[rate] > 0
        assert {"worker_ms", "ci95"} <= worker.keys()
    (cost,) = baselines["no_telemetry"]
    assert cost["arm"] in {arm["name"] for arm in summary["arms"]}
    assert cost["with"]["train_steps_per_s"] is not None
    assert cost["with"].keys() == cost["without"].keys() and "ci95" in cost["with"]


def test_a_sweep_cut_short_is_summarized_as_far_as_it_went(trials: Trials) -> None:
    shared = {arm: runs for arm, runs in trials.items() if arm.kind is Kind.SHARED}
    summary = json.loads(to_json(summarize(dict(list(shared.items())[:2]))))
    assert len(summary["arms"]) == 2
    for arm in summary["arms"]:
        assert (arm["isolated_worker_ms"], arm["allowed_steps_per_s"]) == (None, None)
    assert summary["baselines"] == {"solo_render": [], "solo_worker": [], "no_telemetry": []}
    assert summarize({})["arms"] == []
