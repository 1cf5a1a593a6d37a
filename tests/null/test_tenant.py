"""The tenant with stub jobs and real policies: what goes to the queue, in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.rows import ChunkRow
from app.tenancy.policy import DeadlinePolicy, FixedPolicy, GreedyPolicy, Policy
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameTiming
from engine.chunks import cut

DISPATCHES = {"train": 40, "infer": 24}


class StubJob:
    """A job whose chunks are entries of a list."""

    def __init__(self, name: str, events: list[Any]) -> None:
        self.name, self.events = name, events
        self.runs = 0
        self.is_due = True
        self.cut(1)

    def cut(self, chunks: int) -> None:
        self.chunks = cut([1.0] * DISPATCHES[self.name], chunks)

    def due(self, now_ns: int) -> bool:
        return self.is_due

    def begin(self) -> None:
        self.events.append(("begin", self.name))

    def encode(self, encoder: list[Any], index: int) -> None:
        encoder.append((self.name, index, len(self.chunks)))

    def submitted(self, index: int, serial: int) -> None:
        self.events.append(("submitted", self.name, index, serial))

    def completed(self) -> None:
        self.runs += 1
        self.events.append(("completed", self.name))

    def poll(self) -> None:
        self.events.append(("poll", self.name))


class Rig:
    """A tenant on a queue whose completions the test decides."""

    def __init__(self, policy: Policy, *, chunks: int = 3, mode: str = "both") -> None:
        self.events: list[Any] = []
        self.train, self.infer = (StubJob(name, self.events) for name in ("train", "infer"))
        self.queue: list[tuple[str, int, int]] = []
        """Every chunk submitted so far: (job, index, of)."""
        self.serial = 100
        self.waiting: deque[int] = deque()
        self.rows: list[ChunkRow] = []
        self.frame_id = 0
        self.tenant = Tenant(
            {"train": self.train, "infer": self.infer},
            policy,
            chunks=chunks,
            mode=mode,
            new_encoder=list,
            submit=self._submit,
        )

    def _submit(self, encoder: list[Any]) -> int:
        self.queue += encoder
        self.serial += 1
        self.waiting.append(self.serial)
        return self.serial

    def frame(self) -> list[tuple[str, int, int]]:
        """A frame; returns what was submitted in it."""
        self.frame_id += 1
        before = len(self.queue)
        self.tenant.frame_started(FrameTiming(self.frame_id, 2**62, 10**10, True))
        self.tenant.pump(after_submit=True)
        return self.queue[before:]

    def complete(self, count: int | None = None) -> None:
        for _ in range(len(self.waiting) if count is None else min(count, len(self.waiting))):
            serial = self.waiting.popleft()
            row = self.tenant.collect(serial, done_ns=10**15 + serial)
            assert row is not None
            self.rows.append(row)

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
        rig.tenant.pump(after_submit=True)  # idling until the next frame
        assert rig.tenant.chunks_this_frame == expected


def test_nothing_is_submitted_before_the_first_frame() -> None:
    rig = Rig(GreedyPolicy(4))
    rig.tenant.pump(after_submit=True)
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
    assert rig.tenant.collect(1, 0) is None
    rig.frame()
    foreign = rig.serial + 1
    assert rig.tenant.collect(foreign, 0) is None
    assert rig.tenant.in_flight == 2
    rig.complete()
    assert rig.tenant.collect(rig.serial, 0) is None


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


def test_chunk_time_is_counted_from_the_one_before() -> None:
    rig = Rig(FixedPolicy(2), chunks=2, mode="train")
    rig.frame()
    first, second = rig.waiting
    row = rig.tenant.collect(first, done_ns=10**16)
    assert row is not None
    queued_ns = 10**16 - row.submit_ns
    assert rig.tenant.chunk_ms == pytest.approx(queued_ns / 1e6)
    rig.tenant.collect(second, done_ns=10**16 + 5_000_000)
    assert rig.tenant.busy_ns == queued_ns + 5_000_000
    assert rig.tenant.chunk_ms < queued_ns / 1e6


def test_the_deadline_policy_learns_the_cost_and_then_fits_chunks() -> None:
    policy = DeadlinePolicy(8)
    rig = Rig(policy, chunks=8, mode="train")
    assert len(rig.frame()) == 1  # the cost is not known yet
    row = rig.tenant.collect(rig.waiting.popleft(), done_ns=0)  # clamped: no negative time
    assert row is not None and rig.tenant.chunk_ms == 0.0
    rig.tenant.chunk_ms = 0.001
    assert len(rig.frame()) == 8
