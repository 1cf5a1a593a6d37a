"""Chunk policies against scripted situations and a small model of a first-in-first-out GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tenancy.policy import (
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

# 4 ms before the next frame should start: with eyes of 1 ms and the first margin, 11 ms are free.
CALM = Situation(
    now_ns=100 * MS,
    in_flight=0,
    submitted_this_frame=0,
    next_wake_ns=104 * MS,
    period_ns=10 * MS,
    chunk_ms=2.0,
    eye_ms=1.0,
    should_render=True,
    after_submit=True,
)

situations = st.builds(
    Situation,
    now_ns=st.integers(0, 100 * MS),
    in_flight=st.integers(0, 6),
    submitted_this_frame=st.integers(0, 6),
    next_wake_ns=st.integers(0, 100 * MS),
    period_ns=st.sampled_from([8 * MS, 11 * MS, 14 * MS]),
    chunk_ms=st.one_of(st.just(0.0), st.floats(0.01, 400.0)),
    eye_ms=st.floats(0.0, 30.0),
    should_render=st.booleans(),
    after_submit=st.booleans(),
)


def count(policy: Policy, s: Situation) -> int:
    return policy.chunks_to_submit(s).count


@pytest.mark.parametrize("name", POLICIES)
@given(st.integers(1, 4), st.lists(st.tuples(situations, st.integers(0, 3)), max_size=20))
def test_no_policy_ever_exceeds_the_in_flight_bound(
    name: str, in_flight: int, script: list[tuple[Situation, int]]
) -> None:
    policy = make_policy(name, in_flight)
    for situation, missed in script:
        decision = policy.chunks_to_submit(situation)
        assert 0 <= decision.count
        assert decision.count == 0 or situation.in_flight + decision.count <= in_flight
        assert decision.reason
        policy.frame_finished(missed)


@pytest.mark.parametrize("name", POLICIES)
def test_make_policy_gives_the_named_one(name: str) -> None:
    policy = make_policy(name, 3)
    assert (policy.name, policy.in_flight) == (name, 3)


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


def test_fixed_keeps_its_quota_per_frame() -> None:
    policy = make_policy("fixed", 2)
    assert count(policy, CALM) == 2
    assert count(policy, replace(CALM, in_flight=1, submitted_this_frame=1)) == 1
    assert count(policy, replace(CALM, in_flight=0, submitted_this_frame=2)) == 0
    assert count(policy, replace(CALM, in_flight=2, submitted_this_frame=0)) == 0
    # A bound lowered live leaves more in flight than allowed for a moment.
    assert count(policy, replace(CALM, in_flight=5, submitted_this_frame=5)) == 0


def test_greedy_fills_up_whatever_the_frame_needs() -> None:
    policy = make_policy("greedy", 3)
    late = replace(CALM, now_ns=CALM.next_wake_ns + 50 * MS, submitted_this_frame=9)
    assert count(policy, late) == 3
    assert count(policy, replace(late, in_flight=2)) == 1
    assert count(policy, replace(late, in_flight=3)) == 0


def test_deadline_counts_what_fits_before_the_next_eyes() -> None:
    policy = DeadlinePolicy(99)
    assert policy.chunks_to_submit(CALM).reason == "fits before deadline"
    assert count(policy, CALM) == 5  # 11 ms free, 2 ms each
    assert count(policy, replace(CALM, in_flight=4)) == 1
    assert count(policy, replace(CALM, in_flight=5)) == 0
    assert count(policy, replace(CALM, eye_ms=5.5)) == 1
    assert count(policy, replace(CALM, eye_ms=6.0)) == 0
    assert count(policy, replace(CALM, now_ns=CALM.now_ns + 10 * MS)) == 0
    assert count(policy, replace(CALM, chunk_ms=11.1)) == 0


def test_deadline_protects_the_current_eyes_before_they_are_submitted() -> None:
    before = replace(CALM, after_submit=False)
    assert count(DeadlinePolicy(99), before) == 1  # 4 ms to the deadline, less 1 ms and the margin
    assert count(DeadlinePolicy(99), replace(before, chunk_ms=2.1)) == 0


def test_deadline_gives_the_whole_gpu_when_nothing_is_shown() -> None:
    hidden = replace(CALM, should_render=False, now_ns=CALM.now_ns + 999 * MS, chunk_ms=400.0)
    assert count(DeadlinePolicy(3), replace(hidden, in_flight=1)) == 2


def test_deadline_tries_one_chunk_a_frame_while_the_cost_is_unknown() -> None:
    unknown = replace(CALM, chunk_ms=0.0)
    policy = DeadlinePolicy(4)
    assert count(policy, unknown) == 1
    assert count(policy, replace(unknown, in_flight=1, submitted_this_frame=1)) == 0
    assert count(policy, replace(unknown, submitted_this_frame=1)) == 0
    assert count(policy, replace(unknown, after_submit=False)) == 0


def test_the_margin_grows_on_misses_and_decays_slowly() -> None:
    policy = DeadlinePolicy(99)
    few = count(policy, CALM)
    policy.frame_finished(missed=1)
    assert policy.margin_ms > START_MARGIN_MS
    for _ in range(30):
        count(policy, replace(CALM, should_render=False))  # a chunk that may be to blame
        policy.frame_finished(missed=1)
    assert policy.margin_ms == MAX_MARGIN_MS
    assert count(policy, CALM) == 0 < few

    grown = policy.margin_ms
    policy.frame_finished(missed=0)
    assert 0.99 * grown < policy.margin_ms < grown
    for _ in range(2000):
        policy.frame_finished(missed=0)
    assert policy.margin_ms == MIN_MARGIN_MS


def test_misses_long_after_the_last_chunk_teach_nothing() -> None:
    policy = DeadlinePolicy(1)
    for _ in range(RESULT_DELAY_FRAMES):
        policy.frame_finished(missed=0)
    before = policy.margin_ms
    policy.frame_finished(missed=1)
    assert policy.margin_ms == before


@pytest.mark.parametrize(
    ("missed", "every"), [(0, STARVATION_FRAMES), (1, RESULT_DELAY_FRAMES + 1)]
)
def test_deadline_never_starves_the_network(missed: int, every: int) -> None:
    policy = DeadlinePolicy(2)
    hopeless = replace(CALM, chunk_ms=500.0)
    submitted = []
    for frame in range(4 * every + 1):
        # While a chunk is running nothing starves.
        assert count(policy, replace(hopeless, in_flight=1)) == 0
        for _ in range(3):
            decision = policy.chunks_to_submit(hopeless)
            if decision.count:
                assert decision.reason == "no starvation"
                submitted.append(frame)
        policy.frame_finished(missed)
    assert submitted == [every, 2 * every, 3 * every, 4 * every]


def eyes_late_and_chunks_done(policy: Policy, chunk_ms: int, eye_ms: int) -> tuple[int, int]:
    """100 frames of 10 ms on a GPU that runs what is submitted in order.

    The eyes go out 1 ms after the frame's start; the policy is asked every 0.5 ms otherwise.
    """
    period = 10 * MS
    gpu_free_ns = late = submitted = 0
    chunk_ends: list[int] = []
    for frame in range(100):
        wake = frame * period
        eyes_submitted = wake + MS
        gpu_free_ns = max(gpu_free_ns, eyes_submitted) + eye_ms * MS
        missed = int(gpu_free_ns > wake + period)
        late += missed
        this_frame = 0
        for now in range(eyes_submitted, wake + period, MS // 2):
            in_flight = sum(end > now for end in chunk_ends)
            situation = Situation(
                now, in_flight, this_frame, wake + period, period, chunk_ms, eye_ms, True, True
            )
            for _ in range(policy.chunks_to_submit(situation).count):
                gpu_free_ns = max(gpu_free_ns, now) + chunk_ms * MS
                chunk_ends.append(gpu_free_ns)
                this_frame += 1
        submitted += this_frame
        policy.frame_finished(missed)
    return late, submitted


@pytest.mark.parametrize("chunk_ms", [1, 2, 4])
@pytest.mark.parametrize("eye_ms", [1, 3, 5])
def test_deadline_fills_the_slack_without_missing_a_frame(chunk_ms: int, eye_ms: int) -> None:
    late, submitted = eyes_late_and_chunks_done(make_policy("deadline", 8), chunk_ms, eye_ms)
    assert late == 0
    slack_ms = 100 * (10 - eye_ms)
    assert submitted * chunk_ms > 0.6 * slack_ms


def test_greedy_delays_frames_where_deadline_does_not() -> None:
    late, _ = eyes_late_and_chunks_done(make_policy("greedy", 4), chunk_ms=4, eye_ms=3)
    assert late > 50
