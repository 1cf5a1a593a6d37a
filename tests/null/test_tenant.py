"""The tenant with stub jobs and real policies: what goes to the queue, in which order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.rows import ChunkRow
from app.tenancy.estimates import FIRST_SPREAD, Cost
from app.tenancy.policy import (
    DeadlinePolicy,
    Decision,
    FixedPolicy,
    GreedyPolicy,
    Policy,
    Situation,
)
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameTiming
from engine.chunks import cut
from engine.timestamps import Span

MS = 1_000_000
DISPATCHES = {"train": 40, "infer": 24}


class StubJob:
    """A job whose chunks are entries of a list; each of its dispatches should take 0.1 ms."""

    def __init__(self, name: str, events: list[Any]) -> None:
        self.name, self.events = name, events
        self.runs = 0
        self.is_due = True
        self.stamps: list[Any] = []
        """What each chunk's pass was stamped with."""
        self.cut(1)

    def cut(self, chunks: int) -> None:
        self.chunks = cut([1.0] * DISPATCHES[self.name], chunks)

    def chunk_ms(self, index: int, chunks: int) -> float:
        first, end = cut([1.0] * DISPATCHES[self.name], chunks)[index]
        return 0.1 * (end - first)

    def due(self, now_ns: int) -> bool:
        return self.is_due

    def begin(self) -> None:
        self.events.append(("begin", self.name))

    def encode(self, encoder: list[Any], index: int, stamps: Any = None) -> None:
        encoder.append((self.name, index, len(self.chunks)))
        self.stamps.append(stamps)

    def submitted(self, index: int, serial: int) -> None:
        self.events.append(("submitted", self.name, index, serial))

    def completed(self) -> None:
        self.runs += 1
        self.events.append(("completed", self.name))

    def poll(self) -> None:
        self.events.append(("poll", self.name))


class Rig:
    """A tenant on a queue whose completions the test decides."""

    def __init__(
        self, policy: Policy, *, chunks: int = 3, mode: str = "both", stamps: bool = False
    ) -> None:
        self.events: list[Any] = []
        self.train, self.infer = (StubJob(name, self.events) for name in ("train", "infer"))
        self.queue: list[tuple[str, int, int]] = []
        """Every chunk submitted so far: (job, index, of)."""
        self.serial = 100
        self.waiting: deque[int] = deque()
        self.rows: list[ChunkRow] = []
        self.spans: list[Span] = []
        self.frame_id = 0
        self.tenant = Tenant(
            {"train": self.train, "infer": self.infer},
            policy,
            chunks=chunks,
            mode=mode,
            new_encoder=list,
            submit=self._submit,
            span=self._span if stamps else lambda: None,
        )

    def _span(self) -> Span:
        number = len(self.spans) + 1
        self.spans.append(Span(number, {"query": number}))
        return self.spans[-1]

    def _submit(self, encoder: list[Any]) -> int:
        self.queue += encoder
        self.serial += 1
        self.waiting.append(self.serial)
        return self.serial

    def frame(self) -> list[tuple[str, int, int]]:
        """A frame; returns what was submitted in it."""
        self.frame_id += 1
        before = len(self.queue)
        self.tenant.frame_started(
            FrameTiming(self.frame_id, 2**62, 10**10, True, 2**62), self.frame_id
        )
        self.tenant.pump()
        return self.queue[before:]

    def complete(self, count: int | None = None) -> None:
        for _ in range(len(self.waiting) if count is None else min(count, len(self.waiting))):
            serial = self.waiting.popleft()
            assert self.tenant.completed(serial, done_ns=10**15 + serial)
        self.rows += self.tenant.take_rows()

    def frames(self, count: int) -> list[tuple[str, int, int]]:
        """Frames whose chunks all complete."""
        before = len(self.queue)
        for _ in range(count):
            self.frame()
            self.complete()
        return self.queue[before:]


def runs_of(queue: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """(job, chunks) of each run; fails unless runs are whole, in order and not mixed."""
    runs, rest = [], deque(queue)
    while rest:
        name, index, of = rest[0]
        assert index == 0
        for expected in range(min(of, len(rest))):
            assert rest.popleft() == (name, expected, of)
        runs.append((name, of))
    return runs


counts = st.integers(1, 20)
policies = st.sampled_from([FixedPolicy, GreedyPolicy])
modes = st.sampled_from(["train", "infer", "both"])
completions = st.lists(st.integers(0, 25), min_size=1, max_size=30)


@given(counts, counts, policies, modes, completions)
def test_runs_are_whole_and_the_bound_is_kept_and_reached(
    chunks: int, bound: int, kind: Callable[[int], Policy], mode: str, done: list[int]
) -> None:
    rig = Rig(kind(bound), chunks=chunks, mode=mode)
    for count in done:
        before = rig.tenant.in_flight
        submitted = len(rig.frame())
        # Both policies grant a frame whatever room there is, and there always is work.
        assert submitted == rig.tenant.chunks_this_frame == bound - before
        assert rig.tenant.in_flight == len(rig.waiting) == bound
        rig.complete(count)
    rig.complete()
    assert rig.tenant.in_flight == 0
    runs = runs_of(rig.queue)
    assert [row.of for row in rig.rows] == [of for _, _, of in rig.queue]
    assert max(row.in_flight for row in rig.rows) == bound
    assert {of for _, of in runs} == {chunks}
    expected = {"train": ["train"], "infer": ["infer"], "both": ["infer", "train"]}[mode]
    assert [name for name, _ in runs] == [expected[n % len(expected)] for n in range(len(runs))]


def test_between_frames_completions_make_room_only_for_the_greedy_policy() -> None:
    for policy, expected in ((FixedPolicy(2), 2), (GreedyPolicy(2), 4)):
        rig = Rig(policy)
        rig.frame()
        rig.complete()
        rig.tenant.pump()  # idling until the next frame
        assert rig.tenant.chunks_this_frame == expected


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_holds_for_one_call(limit: int) -> None:
    rig = Rig(GreedyPolicy(8))
    rig.tenant.frame_started(FrameTiming(1, 2**62, 10**10, True, 2**62), 1)
    rig.tenant.pump(limit)
    assert len(rig.queue) == limit
    rig.tenant.pump(limit)
    assert len(rig.queue) == 2 * limit
    rig.tenant.pump()
    assert len(rig.queue) == 8


def test_nothing_is_submitted_before_the_first_frame() -> None:
    rig = Rig(GreedyPolicy(4))
    rig.tenant.pump()
    rig.tenant.finish_run(rig.complete)
    assert rig.queue == []


def test_a_job_that_is_not_due_gives_way() -> None:
    rig = Rig(FixedPolicy(1), chunks=2)
    rig.infer.is_due = False
    assert runs_of(rig.frames(6)) == [("train", 2)] * 3
    rig.infer.is_due, rig.train.is_due = True, False
    assert runs_of(rig.frames(6)) == [("infer", 2)] * 3
    rig.infer.is_due = False
    assert rig.frames(3) == []
    rig.train.is_due = True
    assert runs_of(rig.frames(2)) == [("train", 2)]


def test_inference_alone_always_runs_and_failed_training_alone_never() -> None:
    for mode, expected in (("infer", 3), ("train", 0)):
        rig = Rig(FixedPolicy(1), chunks=1, mode=mode)
        rig.train.is_due = rig.infer.is_due = False
        assert len(rig.frames(3)) == expected


def test_chunk_count_takes_effect_at_the_next_run() -> None:
    rig = Rig(FixedPolicy(1), chunks=3, mode="train")
    rig.frames(4)
    rig.tenant.chunks = 5
    rig.frames(2 + 5)
    rig.tenant.chunks = 1
    rig.frames(2)
    assert runs_of(rig.queue) == [("train", 3), ("train", 3), ("train", 5), ("train", 1)] + [
        ("train", 1)
    ]


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=15))
def test_live_settings_never_break_a_run_or_the_bound(settings: list[tuple[int, int]]) -> None:
    rig = Rig(FixedPolicy(1))
    for chunks, bound in settings:
        rig.tenant.chunks, rig.tenant.policy.in_flight = chunks, bound
        before = rig.tenant.in_flight
        rig.frame()
        assert rig.tenant.in_flight == max(before, bound)
        rig.complete(1)
    runs_of(rig.queue)


def test_more_chunks_than_dispatches() -> None:
    rig = Rig(FixedPolicy(1), chunks=1000, mode="infer")
    rig.frames(DISPATCHES["infer"])
    assert runs_of(rig.queue) == [("infer", DISPATCHES["infer"])]


def test_training_off_pauses_at_the_end_of_the_step() -> None:
    rig = Rig(FixedPolicy(1), chunks=3, mode="train")
    rig.frames(4)
    rig.tenant.training = False
    assert rig.frames(5) == [("train", 1, 3), ("train", 2, 3)]
    assert rig.tenant.between_runs and rig.train.runs == 2
    rig.tenant.training = True
    assert rig.frames(1) == [("train", 0, 3)]


def test_inference_goes_on_while_training_is_off() -> None:
    rig = Rig(FixedPolicy(1), chunks=2)
    rig.frames(3)
    rig.tenant.training = False
    assert runs_of(rig.frames(5)[1:]) == [("infer", 2)] * 2


def test_mode_changes_between_runs() -> None:
    rig = Rig(FixedPolicy(1), chunks=2, mode="train")
    rig.frames(1)
    rig.tenant.mode = "infer"
    rig.frames(5)
    assert runs_of(rig.queue) == [("train", 2), ("infer", 2), ("infer", 2)]


@pytest.mark.parametrize("mode", ["train", "both"])
def test_hold_ends_at_a_run_boundary_whatever_the_rhythm(mode: str) -> None:
    # 3 chunks, then 4, two a frame: without `hold` every frame would end inside a run.
    rig = Rig(FixedPolicy(2), chunks=3, mode=mode)
    rig.frame()
    rig.complete()
    rig.tenant.chunks = 4
    for _ in range(5):
        rig.frame()
        rig.complete()
        assert not rig.tenant.between_runs
    rig.tenant.hold = True
    rig.frames(3)
    assert rig.tenant.between_runs
    assert rig.queue[-1][1:] == (3, 4)
    rig.tenant.hold = False
    assert len(rig.frames(1)) == 2


def test_rows_tell_what_was_submitted() -> None:
    rig = Rig(FixedPolicy(2), chunks=3)
    rig.frames(6)
    rows = rig.rows
    assert [row.id for row in rows] == list(range(1, 13))
    assert [(row.job, row.index, row.of) for row in rows] == rig.queue
    expected = [("infer", 1)] * 3 + [("train", 1)] * 3 + [("infer", 2)] * 3 + [("train", 2)] * 3
    assert [(row.job, row.job_id) for row in rows] == expected
    assert [row.frame_id for row in rows] == [1 + n // 2 for n in range(12)]
    assert [row.in_flight for row in rows] == [1, 2] * 6
    for row in rows:
        assert row.reason == "frame quota"
        assert row.done_ns is not None and row.submit_ms is not None
        assert row.submit_ms >= 0 and row.done_ns > row.submit_ns
    for start in range(0, 12, 3):
        assert sum(row.dispatches for row in rows[start : start + 3]) == DISPATCHES[rows[start].job]


def test_a_run_counts_when_its_last_chunk_completes() -> None:
    rig = Rig(FixedPolicy(3), chunks=3, mode="train")
    rig.frame()
    rig.complete(2)
    assert rig.train.runs == 0
    rig.complete(1)
    assert rig.train.runs == 1
    order = [event[:3] for event in rig.events if event[0] != "poll"]
    submitted = [("submitted", "train", index) for index in range(3)]
    assert order == [("begin", "train"), *submitted, ("completed", "train")]


def test_foreign_completions_are_left_to_others() -> None:
    rig = Rig(FixedPolicy(2))
    assert not rig.tenant.completed(1, 0)
    rig.frame()
    foreign = rig.serial + 1
    assert not rig.tenant.completed(foreign, 0)
    assert rig.tenant.in_flight == 2
    rig.complete()
    assert not rig.tenant.completed(rig.serial, 0)
    assert not rig.tenant.stamped(1, 0, 1)


def test_finish_run_completes_the_run_and_starts_none() -> None:
    rig = Rig(FixedPolicy(1), chunks=7, mode="train")
    rig.frames(3)
    rig.tenant.finish_run(rig.complete)
    assert runs_of(rig.queue) == [("train", 7)] and len(rig.queue) == 7
    assert rig.train.runs == 1
    assert [row.reason for row in rig.rows] == ["frame quota"] * 3 + ["end of session"] * 4
    assert {row.in_flight for row in rig.rows} == {1}
    rig.tenant.finish_run(rig.complete)
    assert len(rig.queue) == 7


def test_poll_reaches_every_job() -> None:
    rig = Rig(FixedPolicy(1), mode="infer")
    rig.tenant.poll()
    assert rig.events == [("poll", "train"), ("poll", "infer")]


def test_why_no_further_chunk_went_out_is_told() -> None:
    rig = Rig(FixedPolicy(2))
    rig.frame()
    assert rig.tenant.withheld == "in-flight bound"
    rig.complete()
    rig.tenant.pump()
    assert rig.tenant.withheld == "frame quota used"
    rig.tenant.hold, rig.tenant.chunks = True, 1
    for _ in range(2):
        rig.frame()
        rig.complete()
    assert rig.tenant.between_runs and rig.tenant.withheld == "no work"


def test_the_newest_chunk_in_flight_is_named() -> None:
    rig = Rig(FixedPolicy(2), chunks=4)
    assert rig.tenant.newest_in_flight is None
    rig.frame()
    assert rig.tenant.newest_in_flight == 2
    rig.complete(1)
    assert rig.tenant.newest_in_flight == 2
    rig.frame()
    assert rig.tenant.newest_in_flight == 3
    rig.complete()
    assert rig.tenant.newest_in_flight is None


# -- stamps and what is learnt from them --


class Watching(FixedPolicy):
    """Keeps what it was asked."""

    def __init__(self, in_flight: int) -> None:
        super().__init__(in_flight)
        self.seen: list[Situation] = []

    def decide(self, s: Situation) -> Decision:
        self.seen.append(s)
        return super().decide(s)


def test_every_chunk_is_stamped_and_its_row_waits_for_that() -> None:
    rig = Rig(FixedPolicy(2), chunks=2, mode="train", stamps=True)
    rig.frame()
    assert rig.train.stamps == [{"query": 1}, {"query": 2}]
    assert all(span.is_recorded for span in rig.spans)
    rig.complete()
    assert rig.rows == []
    assert rig.tenant.stamped(1, 30 * MS, 34 * MS) and rig.tenant.stamped(2, 40 * MS, 41 * MS)
    times = [(row.begin_ns, row.end_ns, row.gpu_ms) for row in rig.tenant.take_rows()]
    assert times == [(30 * MS, 34 * MS, 4.0), (40 * MS, 41 * MS, 1.0)]


def test_lost_stamps_neither_hold_rows_up_nor_teach_anything() -> None:
    rig = Rig(Watching(2), chunks=2, mode="train", stamps=True)
    rig.frame()
    rig.complete()
    rig.tenant.stamps_passed(3)
    rows = rig.tenant.take_rows()
    assert [(row.id, row.gpu_ms) for row in rows] == [(1, None), (2, None)]
    rig.frame()
    assert isinstance(rig.tenant.policy, Watching) and rig.tenant.policy.seen[-1].chunk is None


def test_at_the_end_rows_come_without_what_is_missing() -> None:
    rig = Rig(FixedPolicy(2), stamps=True)
    rig.frame()
    rig.complete(1)
    assert rig.tenant.take_rows() == []
    rows = rig.tenant.take_rows(all_of_them=True)
    assert [(row.id, row.done_ns is None) for row in rows] == [(1, False), (2, True)]
    assert rig.tenant.take_rows(all_of_them=True) == []


def test_costs_are_the_jobs_figures_scaled_by_experience() -> None:
    policy = Watching(1)
    rig = Rig(policy, chunks=4, mode="train", stamps=True)
    assert rig.frame() and policy.seen[0].chunk is None
    rig.complete()
    rig.tenant.stamped(1, 0, 3 * MS)  # three times of what 10 dispatches should take
    rig.frame()
    chunk = policy.seen[-1].chunk
    assert chunk is not None
    assert (chunk.ms, chunk.sd_ms) == (pytest.approx(3.0), pytest.approx(0.3))
    rig.complete()
    rig.tenant.stamped(2, 10 * MS, 13 * MS)
    for _ in range(2):
        rig.frame()
        rig.complete()
    # The next run is cut anew: its first chunk is half of the job.
    rig.tenant.chunks = 2
    rig.frame()
    chunk = policy.seen[-2].chunk
    assert chunk is not None and chunk.ms == pytest.approx(6.0)
    rows = rig.rows + rig.tenant.take_rows(all_of_them=True)
    assert [row.predicted_ms for row in rows] == [
        None, pytest.approx(3.0), pytest.approx(3.0), pytest.approx(3.0), pytest.approx(6.0),
    ]  # fmt: skip


def test_between_runs_the_dearest_first_chunk_is_reckoned_with() -> None:
    policy = Watching(1)
    rig = Rig(policy, chunks=1, mode="both", stamps=True)
    for number, ms in ((1, 10), (2, 2)):  # an inference, then a training step
        rig.frame()
        rig.complete()
        rig.tenant.stamped(number, 0, ms * MS)
    rig.frame()
    chunk = policy.seen[-1].chunk
    assert chunk is not None and chunk.ms == pytest.approx(10.0)
    rig.complete()
    rig.tenant.mode = "train"
    rig.frame()
    chunk = policy.seen[-1].chunk
    assert chunk is not None and chunk.ms == pytest.approx(2.0)


def test_without_stamps_costs_are_learnt_from_completions() -> None:
    policy = Watching(2)
    rig = Rig(policy, chunks=2, mode="train")
    rig.frame()
    submitted = [policy.seen[0].now_ns, policy.seen[1].now_ns]
    first, second = rig.waiting
    rig.tenant.completed(first, submitted[0] + 200 * MS)
    rig.tenant.completed(second, submitted[0] + 205 * MS)
    rig.waiting.clear()
    one, two = rig.tenant.take_rows()
    assert one.gpu_ms == (submitted[0] + 200 * MS - one.submit_ns) / 1e6
    assert two.gpu_ms == 5.0
    rig.frame()
    chunk = policy.seen[-1].chunk
    assert chunk is not None and 5.0 < chunk.ms < 200.0


def test_the_backlog_holds_eyes_and_chunks_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 1000 * MS)
    policy = Watching(2)
    rig = Rig(policy, chunks=4, mode="train", stamps=True)
    rig.tenant.learn_eye_time(7.0)
    rig.frame()
    rig.complete()
    for number in (1, 2):
        rig.tenant.stamped(number, 0, 3 * MS)
    assert rig.tenant.eyes == Cost(7.0, 7.0 * FIRST_SPREAD)

    rig.serial += 1
    rig.tenant.eyes_submitted(rig.serial, 1000 * MS)
    rig.frame()
    assert [s.backlog.ms for s in policy.seen[-3:]] == [
        pytest.approx(7.0), pytest.approx(10.0), pytest.approx(13.0),
    ]  # fmt: skip
    assert {s.eyes.ms for s in policy.seen[-3:]} == {7.0}
    assert not rig.tenant.completed(rig.serial - 2, 1000 * MS)  # the eyes
    rig.tenant.pump()
    assert policy.seen[-1].backlog.ms == pytest.approx(6.0)
    assert policy.seen[-1].in_flight == 2


def test_what_is_at_stake_is_the_next_frame() -> None:
    policy = Watching(1)
    rig = Rig(policy)
    rig.tenant.frame_started(FrameTiming(1, 60 * MS, 11 * MS, False, 50 * MS), 1)
    rig.tenant.pump()
    assert policy.seen[0].due_ns == 61 * MS
    assert not policy.seen[0].should_render


def test_the_deadline_policy_learns_the_cost_and_then_fits_chunks() -> None:
    rig = Rig(DeadlinePolicy(8), chunks=8, mode="train", stamps=True)
    assert len(rig.frame()) == 1  # the cost is not known yet
    rig.complete()
    rig.tenant.stamped(1, 0, 1000)
    assert len(rig.frame()) == 8


def test_the_deadline_policy_withholds_what_would_be_late() -> None:
    rig = Rig(DeadlinePolicy(8), chunks=8, mode="train", stamps=True)
    rig.frame()
    rig.complete()
    rig.tenant.stamped(1, 0, 50 * MS)
    now_ns = time.perf_counter_ns()
    rig.tenant.frame_started(FrameTiming(2, 0, 10 * MS, True, now_ns + 10 * MS), 2)
    rig.tenant.pump()
    assert (rig.tenant.chunks_this_frame, rig.tenant.withheld) == (0, "too late for deadline")
