"""What the simulated headset says was shown, against a brute-force compositor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xr_rig import MS, Rig

from app.xr.driver import FrameResult
from app.xr.simulated import COMPOSITOR_LEAD_NS, MAX_UNCOMPLETED


def test_a_smooth_run_is_all_fresh() -> None:
    rig = Rig()
    timings = [rig.frame() for _ in range(30)]
    results = rig.finish()
    assert [r.displayed_ns for r in results] == [t.predicted_display_ns for t in timings]
    assert {(r.missed, r.stale_run) for r in results} == {(0, 0)}
    stats = rig.driver.stats()
    assert (stats.vsyncs, stats.fresh, stats.stale, stats.dropped) == (30, 30, 0, 0)


@pytest.mark.parametrize(
    ("spare_ns", "missed"), [(0, 0), (-1, 1), (-10 * MS, 1), (-10 * MS - 1, 2)]
)
def test_the_latch_is_exactly_one_lead_before_the_vsync(spare_ns: int, missed: int) -> None:
    rig = Rig()
    rig.frame()
    timing = rig.frame(gpu_ns=None)
    done = timing.predicted_display_ns - COMPOSITOR_LEAD_NS - spare_ns
    rig.due.append((done, timing.frame_id, done))
    result = rig.finish()[-1]
    assert result.missed == missed == result.stale_run
    assert result.displayed_ns == timing.predicted_display_ns + missed * rig.period
    assert rig.driver.stats().stale == missed


def test_an_overtaken_frame_is_dropped() -> None:
    rig = Rig()
    rig.frame()
    late = rig.frame(gpu_ns=None)
    newer = rig.frame(gpu_ns=None)
    # Both complete between the newer frame's latch and the following one.
    done = newer.predicted_display_ns - COMPOSITOR_LEAD_NS + MS
    rig.due += [(done, late.frame_id, done), (done + 1, newer.frame_id, done + 1)]
    _, dropped, shown = rig.finish()
    assert dropped == FrameResult(late.frame_id, 0, 2, 2)
    assert dropped.dropped and not shown.dropped
    assert shown == FrameResult(
        newer.frame_id, newer.predicted_display_ns + rig.period, missed=1, stale_run=2
    )
    stats = rig.driver.stats()
    assert (stats.vsyncs, stats.fresh, stats.stale) == (4, 2, 2)
    assert (stats.longest_stale_run, stats.dropped) == (2, 1)


def test_a_completion_told_late_but_in_time_is_not_a_miss() -> None:
    rig = Rig()
    rig.frame(told_after_ns=35 * MS)
    rig.frame(told_after_ns=35 * MS)
    assert rig.driver.results() == []
    results = rig.finish()
    assert [r.missed for r in results] == [0, 0]
    assert rig.driver.stats().stale == 0


def test_a_completion_may_be_told_before_end_frame() -> None:
    rig = Rig()
    timing = rig.driver.wait_frame(rig.idle)
    rig.driver.begin_frame()
    rig.driver.frame_completed(timing.frame_id, rig.clock.now)
    rig.clock.now = timing.predicted_display_ns  # handed over only now: after the latch
    rig.driver.end_frame(timing.frame_id)
    assert rig.finish()[0].missed == 1


def test_the_first_completion_told_counts() -> None:
    rig = Rig()
    rig.frame(gpu_ns=None)
    rig.driver.frame_completed(1, rig.clock.now)
    rig.driver.frame_completed(1, rig.clock.now + 50 * MS)
    assert rig.finish()[0].missed == 0


def test_a_refresh_still_ahead_is_not_decided() -> None:
    rig = Rig()
    first = rig.frame(gpu_ns=None)
    second = rig.driver.wait_frame(rig.idle)
    rig.driver.begin_frame()
    rig.clock.now = first.predicted_display_ns - COMPOSITOR_LEAD_NS + MS  # too late for its own
    rig.driver.frame_completed(first.frame_id, rig.clock.now)
    assert rig.driver.results() == []
    rig.driver.end_frame(second.frame_id)  # overtakes it at the next refresh
    rig.driver.frame_completed(second.frame_id, rig.clock.now)
    assert [(r.frame_id, r.dropped) for r in rig.finish()] == [(1, True), (2, False)]


def test_a_late_frame_waits_for_word_of_the_one_that_may_overtake_it() -> None:
    rig = Rig()
    late = rig.frame(gpu_ns=None)
    newer = rig.frame(gpu_ns=None)
    done = late.predicted_display_ns  # too late for its own refresh, in time for the newer one's
    rig.clock.now = newer.predicted_display_ns + 30 * MS
    rig.driver.frame_completed(late.frame_id, done)
    assert rig.driver.results() == []
    rig.driver.frame_completed(newer.frame_id, done)
    assert rig.driver.results() == [
        FrameResult(late.frame_id, 0, 1, 0),
        FrameResult(newer.frame_id, newer.predicted_display_ns, 0, 0),
    ]


def test_refreshes_without_a_frame_are_stale_but_nobodys_miss() -> None:
    rig = Rig()
    first = rig.frame()
    rig.clock.now += 5 * rig.period
    second = rig.frame()
    results = rig.finish()
    skipped = rig.vsync_of(second.predicted_display_ns) - rig.vsync_of(first.predicted_display_ns)
    assert [r.missed for r in results] == [0, 0]
    assert results[1].stale_run == skipped - 1 > 3
    assert rig.driver.stats().longest_stale_run == skipped - 1


def test_a_frame_that_is_never_ended_is_discarded() -> None:
    rig = Rig()
    rig.driver.wait_frame(rig.idle)
    rig.driver.begin_frame()
    second = rig.frame()
    assert second.frame_id == 2
    assert [(r.frame_id, r.dropped) for r in rig.finish()] == [(1, True), (2, False)]


def test_nothing_counts_before_the_first_and_after_the_last_shown_frame() -> None:
    rig = Rig()
    rig.clock.now += 1000 * MS
    rig.frame()
    rig.finish()
    rig.driver.close()
    rig.driver.close()
    rig.clock.now += 1000 * MS
    stats = rig.driver.stats()
    assert (stats.vsyncs, stats.fresh, stats.stale) == (1, 1, 0)


# -- any schedule at all --

frame_scripts = st.lists(
    st.tuples(
        st.integers(0, 25 * MS),  # CPU time between wait and end
        st.integers(-2 * MS, 45 * MS),  # completion after the end (before it: early)
        st.sampled_from([0, 0, 1 * MS, 30 * MS]),  # told later
    ),
    min_size=1,
    max_size=25,
)


def brute_force(
    epoch: int, period: int, handed_over: list[tuple[int, int, int]]
) -> tuple[dict[int, int], int, int, int]:
    """Walk every vsync. Frames are (id, predicted vsync, ready time); returns id -> vsync shown,
    fresh and stale refreshes and the longest stale run, up to the last fresh one."""
    shown: dict[int, int] = {}
    newest = fresh = stale = longest = run = 0
    last = max(v for _, v, _ in handed_over) + 200
    for vsync in range(last):
        latch = epoch + vsync * period - COMPOSITOR_LEAD_NS
        ready = [i for i, v, at in handed_over if v <= vsync and at <= latch and i > newest]
        if ready:
            newest = max(ready)
            shown[newest] = vsync
            fresh, stale, longest, run = fresh + 1, stale + run, max(longest, run), 0
        elif newest:
            run += 1
    return shown, fresh, stale, longest


@settings(max_examples=150, deadline=None)
@given(frame_scripts, st.sampled_from([72.0, 90.0, 120.0]), st.sampled_from([0, MS // 10, 15 * MS]))
def test_the_account_equals_a_brute_force_compositor(
    script: list[tuple[int, int, int]], hz: float, idle_costs_ns: int
) -> None:
    rig = Rig(hz=hz, idle_costs_ns=idle_costs_ns)
    handed_over: list[tuple[int, int, int]] = []
    results: list[FrameResult] = []
    for cpu_ns, gpu_ns, told_after_ns in script:
        timing = rig.driver.wait_frame(rig.idle)
        results += rig.driver.results()
        rig.driver.begin_frame()
        rig.clock.now += cpu_ns
        rig.driver.end_frame(timing.frame_id)
        done = rig.clock.now + gpu_ns
        rig.due.append((max(done, rig.clock.now) + told_after_ns, timing.frame_id, done))
        vsync = rig.vsync_of(timing.predicted_display_ns)
        handed_over.append((timing.frame_id, vsync, max(done, rig.clock.now)))
        results += rig.driver.results()
        assert sum(done > rig.clock.now for _, _, done in rig.due) <= MAX_UNCOMPLETED
    results += rig.finish()

    predicted = [vsync for _, vsync, _ in handed_over]
    assert predicted == sorted(set(predicted)), "two frames were promised one vsync"
    shown, fresh, stale, longest = brute_force(rig.epoch, rig.period, handed_over)
    got = {r.frame_id: rig.vsync_of(r.displayed_ns) for r in results if not r.dropped}
    assert got == shown
    assert len(set(got.values())) == len(got), "two frames on one vsync"
    ids = [r.frame_id for r in results]
    assert ids == list(range(1, len(script) + 1))
    assert all(
        r.missed == got[r.frame_id] - predicted[r.frame_id - 1]
        for r in results
        if r.frame_id in got
    )
    assert all(r.missed >= 1 for r in results if r.dropped)
    stats = rig.driver.stats()
    assert stats.fresh + stats.stale == stats.vsyncs
    assert (stats.fresh, stats.stale, stats.longest_stale_run) == (fresh, stale, longest)
    assert stats.dropped == len(results) - fresh
    assert stats.stale == sum(r.stale_run for r in results if not r.dropped)


@settings(max_examples=50, deadline=None)
@given(frame_scripts)
def test_the_account_does_not_depend_on_when_it_is_asked_for(
    script: list[tuple[int, int, int]],
) -> None:
    def run(ask: Callable[[Rig], list[FrameResult]]) -> list[FrameResult]:
        rig = Rig()
        results = []
        for cpu_ns, gpu_ns, told_after_ns in script:
            rig.frame(cpu_ns=cpu_ns, gpu_ns=max(0, gpu_ns), told_after_ns=told_after_ns)
            results += ask(rig)
        return results + rig.finish()

    assert run(lambda rig: rig.driver.results()) == run(lambda rig: [])
