"""Chunk policies against scripted situations and a small model of a first-in-first-out GPU."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tenancy.estimates import Cost
from app.tenancy.policy import (
    DEVIATIONS,
    MARGIN_GROWTH,
    MAX_MARGIN_MS,
    MIN_MARGIN_MS,
    POLICIES,
    RESULT_DELAY_FRAMES,
    START_MARGIN_MS,
    STARVATION_FRAMES,
    DeadlinePolicy,
    Policy,
    Situation,
    make_policy,
)

MS = 1_000_000
NOTHING = Cost(0.0, 0.0)

# The next eyes are due in 14 ms: with eyes of 1 ms and the first margin, 12 ms are free.
CALM = Situation(
    now_ns=100 * MS,
    in_flight=0,
    submitted_this_frame=0,
    due_ns=114 * MS,
    backlog=NOTHING,
    chunk=Cost(2.0, 0.0),
    eyes=Cost(1.0, 0.0),
    should_render=True,
)

costs = st.builds(Cost, st.floats(0.0, 400.0), st.floats(0.0, 40.0))
situations = st.builds(
    Situation,
    now_ns=st.integers(0, 100 * MS),
    in_flight=st.integers(0, 6),
    submitted_this_frame=st.integers(0, 6),
    due_ns=st.integers(0, 200 * MS),
    backlog=costs,
    chunk=st.none() | costs,
    eyes=costs,
    should_render=st.booleans(),
)


def count(policy: Policy, s: Situation) -> int:
    """How many chunks the policy wants one after the other, none of them complete meanwhile."""
    granted = 0
    while policy.decide(s).submit:
        granted += 1
        chunk = s.chunk or NOTHING
        s = replace(
            s,
            in_flight=s.in_flight + 1,
            submitted_this_frame=s.submitted_this_frame + 1,
            backlog=Cost(s.backlog.ms + chunk.ms, s.backlog.sd_ms + chunk.sd_ms),
        )
    return granted


def queued(chunks: int) -> Situation:
    """CALM with so many of its chunks in flight."""
    return replace(CALM, in_flight=chunks, backlog=Cost(2.0 * chunks, 0.0))


@pytest.mark.parametrize("name", POLICIES)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(situations, st.integers(0, 3), st.booleans()), max_size=20),
)
def test_no_policy_ever_exceeds_the_in_flight_bound(
    name: str, in_flight: int, script: list[tuple[Situation, int, bool]]
) -> None:
    policy = make_policy(name, in_flight)
    for situation, missed, by_chunk in script:
        decision = policy.decide(situation)
        assert not decision.submit or situation.in_flight < in_flight
        assert decision.reason
        assert count(policy, situation) <= max(0, in_flight - situation.in_flight)
        policy.frame_finished(missed, by_chunk=by_chunk)
        margin = policy.margin_ms
        assert margin is None or MIN_MARGIN_MS <= margin <= MAX_MARGIN_MS


@pytest.mark.parametrize("name", POLICIES)
def test_make_policy_gives_the_named_one(name: str) -> None:
    policy = make_policy(name, 3)
    assert (policy.name, policy.in_flight) == (name, 3)
    assert (policy.margin_ms is None) == (name != "deadline")


def test_make_policy_names_the_choices() -> None:
    with pytest.raises(ValueError, match="'lazy': choose fixed, greedy, deadline"):
        make_policy("lazy", 1)


@pytest.mark.parametrize("name", POLICIES)
def test_the_bound_changes_live_and_stays_positive(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        make_policy(name, 0)
    policy = make_policy(name, 1)
    assert count(policy, CALM) == 1
    policy.in_flight = 2
    assert count(policy, CALM) == 2
    with pytest.raises(ValueError, match="at least 1, not -1"):
        policy.in_flight = -1
    assert policy.in_flight == 2


@pytest.mark.parametrize("name", POLICIES)
def test_the_whole_gpu_when_nothing_is_shown(name: str) -> None:
    policy = make_policy(name, 3)
    long = Cost(400.0, 9.0)
    hidden = replace(
        queued(1), should_render=False, due_ns=0, chunk=long, eyes=long, submitted_this_frame=50
    )
    assert policy.decide(hidden).reason == "whole GPU"
    assert count(policy, hidden) == 2


def test_fixed_keeps_its_quota_per_frame() -> None:
    policy = make_policy("fixed", 2)
    assert policy.decide(CALM).reason == "frame quota"
    assert count(policy, CALM) == 2
    assert count(policy, replace(CALM, in_flight=1, submitted_this_frame=1)) == 1
    assert count(policy, replace(CALM, in_flight=0, submitted_this_frame=2)) == 0
    assert count(policy, replace(CALM, in_flight=2, submitted_this_frame=0)) == 0
    # A bound lowered live leaves more in flight than allowed for a moment.
    assert count(policy, replace(CALM, in_flight=5, submitted_this_frame=5)) == 0


def test_a_refusal_says_which_limit_it_was() -> None:
    fixed = make_policy("fixed", 2)
    assert fixed.decide(replace(CALM, in_flight=2)).reason == "in-flight bound"
    assert fixed.decide(replace(CALM, submitted_this_frame=2)).reason == "frame quota used"
    deadline = make_policy("deadline", 2)
    assert deadline.decide(replace(CALM, in_flight=2)).reason == "in-flight bound"
    assert deadline.decide(replace(CALM, due_ns=0)).reason == "too late for deadline"


def test_greedy_fills_up_whatever_the_frame_needs() -> None:
    policy = make_policy("greedy", 3)
    late = replace(CALM, now_ns=CALM.due_ns + 50 * MS, submitted_this_frame=9)
    assert count(policy, late) == 3
    assert count(policy, replace(late, in_flight=2)) == 1
    assert count(policy, replace(late, in_flight=3)) == 0


def test_deadline_counts_what_fits_before_the_next_eyes() -> None:
    policy = DeadlinePolicy(99)
    assert policy.decide(CALM).reason == "fits before deadline"
    assert count(policy, CALM) == 6  # 12 ms free, 2 ms each
    assert count(policy, queued(4)) == 2
    assert count(policy, queued(6)) == 0
    assert count(policy, replace(CALM, backlog=Cost(9.9, 0.0))) == 1
    assert count(policy, replace(CALM, backlog=Cost(10.1, 0.0))) == 0
    assert count(policy, replace(CALM, eyes=Cost(10.9, 0.0))) == 1
    assert count(policy, replace(CALM, eyes=Cost(11.1, 0.0))) == 0
    assert count(policy, replace(CALM, now_ns=CALM.now_ns + 11 * MS)) == 0
    assert count(policy, replace(CALM, chunk=Cost(12.1, 0.0))) == 0


def test_deadline_adds_deviations_of_the_network_and_the_renderer_as_independent() -> None:
    policy = DeadlinePolicy(99)
    unsure = replace(
        CALM, backlog=Cost(0.0, 1.0), chunk=Cost(2.0, 2.0), eyes=Cost(1.0, 4.0)
    )  # hypot(1 + 2, 4) = 5
    free_ms = 2.0 + 1.0 + DEVIATIONS * 5.0 + START_MARGIN_MS
    enough = replace(unsure, due_ns=unsure.now_ns + round((free_ms + 0.01) * MS))
    assert policy.decide(enough).submit
    assert not policy.decide(replace(enough, due_ns=enough.due_ns - 20_000)).submit


def test_deadline_tries_one_chunk_a_frame_while_the_cost_is_unknown() -> None:
    unknown = replace(CALM, chunk=None)
    policy = DeadlinePolicy(4)
    assert policy.decide(unknown).reason == "unknown cost: one a frame"
    assert count(policy, unknown) == 1
    assert count(policy, replace(unknown, in_flight=1)) == 0
    assert policy.decide(replace(unknown, submitted_this_frame=1)).reason == "unknown cost"


def test_the_margin_grows_on_misses_by_chunks_and_decays_slowly() -> None:
    policy = DeadlinePolicy(99)
    few = count(policy, CALM)
    policy.frame_finished(1, by_chunk=True)
    assert policy.margin_ms > START_MARGIN_MS
    for _ in range(60):
        assert policy.decide(replace(CALM, should_render=False)).submit  # who is to blame
        policy.frame_finished(1, by_chunk=True)
    assert policy.margin_ms == MAX_MARGIN_MS
    assert count(policy, CALM) == 0 < few

    policy.frame_finished(0, by_chunk=False)
    for _ in range(3000):
        policy.frame_finished(0, by_chunk=False)
    # Probing for a smaller margin costs a miss: it halves in no less than 3,500 frames.
    assert 0.5 * MAX_MARGIN_MS < policy.margin_ms < 0.6 * MAX_MARGIN_MS
    for _ in range(20_000):
        policy.frame_finished(0, by_chunk=False)
    assert policy.margin_ms == MIN_MARGIN_MS


def test_misses_in_a_row_are_one_lesson_until_it_can_have_helped() -> None:
    policy = DeadlinePolicy(1)
    margins = []
    for _ in range(2 * RESULT_DELAY_FRAMES + 3):
        policy.frame_finished(1, by_chunk=True)
        margins.append(policy.margin_ms)
    delay = RESULT_DELAY_FRAMES
    steps = [n for n in range(1, len(margins)) if margins[n] != margins[n - 1]]
    assert margins[0] == START_MARGIN_MS * MARGIN_GROWTH
    assert steps == [delay + 1, 2 * delay + 2]
    assert margins[-1] == pytest.approx(START_MARGIN_MS * MARGIN_GROWTH**3)


def test_misses_that_no_chunk_caused_teach_the_margin_nothing() -> None:
    policy = DeadlinePolicy(1)
    for _ in range(3 * RESULT_DELAY_FRAMES):
        policy.frame_finished(2, by_chunk=False)
    assert policy.margin_ms == START_MARGIN_MS
    assert count(policy, CALM) == 1


@pytest.mark.parametrize(
    ("missed", "every"), [(0, STARVATION_FRAMES), (1, RESULT_DELAY_FRAMES + 1)]
)
def test_deadline_never_starves_the_network(missed: int, every: int) -> None:
    policy = DeadlinePolicy(2)
    hopeless = replace(CALM, chunk=Cost(500.0, 0.0))
    submitted = []
    for frame in range(4 * every + 1):
        # While a chunk is running nothing starves.
        assert not policy.decide(replace(hopeless, in_flight=1)).submit
        for _ in range(3):
            decision = policy.decide(hopeless)
            if decision.submit:
                assert decision.reason == "no starvation"
                submitted.append(frame)
        policy.frame_finished(missed, by_chunk=False)
    assert submitted == [every, 2 * every, 3 * every, 4 * every]


class Queue:
    """100 frames of 10 ms on a GPU that runs what is submitted in order.

    The eyes go out 1 ms after the frame's start and are due at its end; the policy is asked every
    0.5 ms in between, knows all costs and sees completions at once.
    """

    PERIOD = 10 * MS

    def __init__(self, policy: Policy, chunk_ms: int, eye_ms: int) -> None:
        self.policy = policy
        self.chunk, self.eyes = Cost(chunk_ms, 0.0), Cost(eye_ms, 0.0)
        self.free_ns = self.late = self.submitted = 0
        self.chunk_ends: deque[int] = deque()
        for frame in range(100):
            self.frame(frame * self.PERIOD)

    def frame(self, wake_ns: int) -> None:
        eyes_ns, next_ns = wake_ns + MS, wake_ns + self.PERIOD
        self.free_ns = max(self.free_ns, eyes_ns) + round(self.eyes.ms * MS)
        missed = int(self.free_ns > next_ns)
        self.late += missed
        this_frame = 0
        for now_ns in range(eyes_ns, next_ns, MS // 2):
            while self.policy.decide(self.situation(now_ns, this_frame, next_ns)).submit:
                self.free_ns = max(self.free_ns, now_ns) + round(self.chunk.ms * MS)
                self.chunk_ends.append(self.free_ns)
                this_frame += 1
        self.submitted += this_frame
        self.policy.frame_finished(missed, by_chunk=missed > 0)

    def situation(self, now_ns: int, this_frame: int, next_ns: int) -> Situation:
        while self.chunk_ends and self.chunk_ends[0] <= now_ns:
            self.chunk_ends.popleft()
        return Situation(
            now_ns=now_ns,
            in_flight=len(self.chunk_ends),
            submitted_this_frame=this_frame,
            due_ns=next_ns + self.PERIOD,
            backlog=Cost(max(0, self.free_ns - now_ns) / MS, 0.0),
            chunk=self.chunk,
            eyes=self.eyes,
            should_render=True,
        )


@pytest.mark.parametrize("chunk_ms", [1, 2, 4])
@pytest.mark.parametrize("eye_ms", [1, 3, 5])
def test_deadline_fills_the_slack_without_missing_a_frame(chunk_ms: int, eye_ms: int) -> None:
    queue = Queue(make_policy("deadline", 8), chunk_ms, eye_ms)
    assert queue.late == 0
    slack_ms = 100 * (10 - eye_ms)
    assert queue.submitted * chunk_ms > 0.9 * slack_ms


def test_greedy_delays_frames_where_deadline_does_not() -> None:
    assert Queue(make_policy("greedy", 4), chunk_ms=4, eye_ms=3).late > 50
