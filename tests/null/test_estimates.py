"""What the scheduler expects: learnt costs, and the queue's backlog."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tenancy.estimates import FIRST_SPREAD, Backlog, Cost, Estimate

MS = 1_000_000


def learnt(*samples: float) -> Estimate:
    estimate = Estimate()
    for sample in samples:
        estimate.learn(sample)
    return estimate


def test_nothing_is_known_at_first() -> None:
    estimate = Estimate()
    assert (estimate.mean, estimate.sd, estimate.known) == (0.0, 0.0, False)


def test_a_single_sample_is_not_trusted_blindly() -> None:
    estimate = learnt(5.0)
    assert estimate.known and estimate.mean == 5.0
    assert estimate.sd == pytest.approx(5.0 * FIRST_SPREAD)


def test_equal_samples_leave_no_doubt() -> None:
    estimate = learnt(*[3.0] * 200)
    assert estimate.mean == 3.0 and estimate.sd < 1e-4


def test_mean_and_deviation_of_noisy_samples(rng: np.random.Generator) -> None:
    estimate, means, deviations = Estimate(), [], []
    for number, sample in enumerate(rng.normal(10.0, 2.0, 4000)):
        estimate.learn(float(sample))
        if number > 100:
            means.append(estimate.mean)
            deviations.append(estimate.sd)
    assert np.mean(means) == pytest.approx(10.0, abs=0.2)
    assert np.sqrt(np.mean(np.square(deviations))) == pytest.approx(2.0, abs=0.2)


def test_a_changed_cost_is_followed_and_doubted_meanwhile() -> None:
    estimate = learnt(*[1.0] * 100)
    doubts = []
    for _ in range(12):
        estimate.learn(3.0)
        doubts.append(estimate.sd)
    assert 2.0 < estimate.mean < 3.0
    assert estimate.mean + 2 * estimate.sd > 3.0  # what a deadline reckons with
    assert max(doubts) > 0.5
    for _ in range(100):
        estimate.learn(3.0)
    assert estimate.mean == pytest.approx(3.0, abs=1e-3) and estimate.sd < 0.01


def test_a_hiccup_is_soon_forgotten() -> None:
    estimate = learnt(*[1.0] * 100, 50.0)
    assert estimate.mean + 2 * estimate.sd < 1.5
    assert learnt(*[1.0] * 100, 0.0).mean > 0.9


def test_a_bad_first_sample_weighs_no_more_than_the_next_ones() -> None:
    estimate = learnt(3.0, *[1.0] * 9)
    assert estimate.mean < 1.6
    assert estimate.mean - 2 * estimate.sd < 1.0


def test_samples_of_nothing_say_nothing() -> None:
    assert not learnt(0.0, 0.0).known
    assert learnt(0.0, 0.0, 4.0).mean == 4.0


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_estimates_stay_among_the_samples(samples: list[float]) -> None:
    estimate = learnt(*samples)
    assert min(samples) - 1e-6 <= estimate.mean <= max(samples) + 1e-6
    assert 0 <= estimate.sd <= max(samples) and math.isfinite(estimate.sd)


# -- backlog --


def test_an_empty_queue_delays_nothing() -> None:
    backlog = Backlog()
    assert backlog.ahead(5 * MS) == Cost(0.0, 0.0)
    backlog.submitted(1, 0, Cost(3.0, 0.5))
    backlog.completed(1, 3 * MS)
    assert backlog.ahead(5 * MS) == Cost(0.0, 0.0)


def test_work_under_way_shrinks_but_not_below_nothing() -> None:
    backlog = Backlog()
    backlog.submitted(1, 10 * MS, Cost(4.0, 0.5))
    backlog.submitted(2, 10 * MS, Cost(2.0, 0.25))
    for passed_ms, left_ms in ((0, 6.0), (1, 5.0), (4, 2.0), (9, 2.0)):
        # Overdue work may end any moment; what stands behind it has not begun.
        assert backlog.ahead((10 + passed_ms) * MS) == Cost(left_ms, 0.75)
    assert backlog.ahead(9 * MS) == Cost(6.0, 0.75)  # a clock read out of order


def test_work_begins_when_the_one_before_was_done() -> None:
    backlog = Backlog()
    backlog.submitted(1, 0, Cost(4.0, 0.0))
    backlog.submitted(2, 1 * MS, Cost(4.0, 0.0))
    backlog.completed(1, 6 * MS)
    assert backlog.ahead(7 * MS).ms == pytest.approx(3.0)
    backlog.completed(2, 10 * MS)
    backlog.submitted(3, 20 * MS, Cost(4.0, 0.0))  # after a pause: from its own submission
    assert backlog.ahead(21 * MS).ms == pytest.approx(3.0)


def test_one_completion_tells_of_all_before_it() -> None:
    backlog = Backlog()
    for serial in (3, 5, 8):
        backlog.submitted(serial, 0, Cost(1.0, 0.1))
    backlog.completed(6, 2 * MS)  # somebody else's submission
    assert backlog.ahead(2 * MS) == Cost(1.0, 0.1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8), st.booleans()), max_size=60))
def test_exact_costs_and_prompt_completions_give_the_exact_wait(
    steps: list[tuple[int, int, bool]],
) -> None:
    backlog, ends = Backlog(), deque[tuple[int, int]]()
    now = free = serial = 0
    for pause, cost, busy in steps:
        now += pause
        while ends and ends[0][1] <= now:
            backlog.completed(ends[0][0], ends[0][1] * MS)
            ends.popleft()
        if busy:
            serial += 1
            free = max(free, now) + cost
            ends.append((serial, free))
            backlog.submitted(serial, now * MS, Cost(float(cost), 0.0))
        assert backlog.ahead(now * MS).ms == pytest.approx(max(0, free - now))
