"""The simulated headset against a fake clock, a scripted GPU and a brute-force compositor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.xr.driver import FrameResult, FrameTiming, XrDriver
from app.xr.head_motion import IPD_M, scripted_views
from app.xr.simulated import (
    COMPOSITOR_LEAD_NS,
    IDLE_EVERY_NS,
    LATEST_START,
    MAX_UNCOMPLETED,
    THROTTLE_LIMIT_NS,
    SimulatedDriver,
)

MS = 1_000_000


class FakeClock:
    def __init__(self, now_ns: int = 1_234_567_891_234) -> None:
        self.now = now_ns

    def now_ns(self) -> int:
        return self.now

    def sleep_ns(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self.now += max(duration_ns, 1_000)


@dataclass
class Rig:
    """An application on a fake clock; `idle` tells the completions that are due."""

    hz: float = 100.0
    idle_costs_ns: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    due: list[tuple[int, int, int]] = field(default_factory=list)  # tell at, frame, completed
    idle_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = SimulatedDriver(self.hz, clock=self.clock)
        self.driver.open()
        self.epoch = self.clock.now
        self.period = self.driver.period_ns

    def idle(self) -> None:
        self.idle_at.append(self.clock.now)
        self.clock.now += self.idle_costs_ns
        self.tell()

    def tell(self) -> None:
        for entry in sorted(self.due):
            if entry[0] <= self.clock.now:
                self.due.remove(entry)
                self.driver.frame_completed(entry[1], entry[2])

    def vsync_of(self, ns: int) -> int:
        number, rest = divmod(ns - self.epoch, self.period)
        assert rest == 0, "displayed between two vsyncs"
        return number

    def frame(
        self, *, cpu_ns: int = MS, gpu_ns: int | None = MS, told_after_ns: int = 0
    ) -> FrameTiming:
        timing = self.driver.wait_frame(self.idle)
        self.driver.begin_frame()
        self.clock.now += cpu_ns
        self.driver.end_frame(timing.frame_id)
        if gpu_ns is not None:
            done = self.clock.now + gpu_ns
            self.due.append((done + told_after_ns, timing.frame_id, done))
        return timing

    def finish(self) -> list[FrameResult]:
        self.clock.now += 10_000 * MS
        self.tell()
        return self.driver.results()


# -- pacing --


def test_it_is_an_xr_driver() -> None:
    driver: XrDriver = SimulatedDriver()
    assert driver.name == "simulated"
    assert driver.view_size == (720, 720)


def test_wakes_one_period_and_the_lead_before_each_vsync() -> None:
    rig = Rig()
    rig.frame()
    for _ in range(20):
        before = rig.clock.now
        timing = rig.driver.wait_frame(rig.idle)
        wake = timing.predicted_display_ns - rig.period - COMPOSITOR_LEAD_NS
        assert before < wake <= rig.clock.now <= wake + 10_000
        assert timing.period_ns == rig.period == 10 * MS
        rig.driver.begin_frame()
        rig.driver.end_frame(timing.frame_id)
        rig.driver.frame_completed(timing.frame_id, rig.clock.now)


def test_predicted_vsyncs_are_consecutive_when_the_application_keeps_up() -> None:
    rig = Rig(hz=90.0)
    timings = [rig.frame() for _ in range(50)]
    vsyncs = [rig.vsync_of(t.predicted_display_ns) for t in timings]
    assert vsyncs == list(range(vsyncs[0], vsyncs[0] + 50))
    assert [t.frame_id for t in timings] == list(range(1, 51))
    assert all(t.should_render for t in timings)


def test_idle_is_called_about_every_fifth_of_a_millisecond() -> None:
    rig = Rig()
    rig.frame()
    rig.frame()
    rig.idle_at.clear()
    rig.frame()
    gaps = [b - a for a, b in zip(rig.idle_at, rig.idle_at[1:], strict=False)]
    assert len(gaps) > 30
    assert max(gaps) == IDLE_EVERY_NS


def test_a_late_application_still_polls_once() -> None:
    rig = Rig()
    rig.frame()
    rig.clock.now = rig.epoch + 9 * rig.period - COMPOSITOR_LEAD_NS + MS  # no need to wait
    rig.idle_at.clear()
    rig.frame()
    assert len(rig.idle_at) >= 1


def test_a_slightly_late_start_keeps_the_vsync_and_a_later_one_skips_it() -> None:
    rig = Rig()
    first = rig.frame(cpu_ns=0)
    wake_of_next = first.predicted_display_ns - COMPOSITOR_LEAD_NS
    rig.clock.now = wake_of_next + int(LATEST_START * rig.period)
    second = rig.frame(cpu_ns=0)
    assert second.predicted_display_ns == first.predicted_display_ns + rig.period

    rig.clock.now = second.predicted_display_ns - COMPOSITOR_LEAD_NS
    rig.clock.now += int(LATEST_START * rig.period) + 1
    third = rig.driver.wait_frame(rig.idle)
    assert third.predicted_display_ns == second.predicted_display_ns + 2 * rig.period


def test_a_very_late_application_skips_to_a_vsync_still_ahead() -> None:
    rig = Rig()
    first = rig.frame()
    rig.clock.now += 123 * rig.period
    second = rig.frame()
    assert second.predicted_display_ns - first.predicted_display_ns >= 123 * rig.period
    assert second.predicted_display_ns > rig.clock.now


@pytest.mark.parametrize("cost_ms", [3, 9, 10, 11, 47, 1000])
def test_an_idle_that_blocks_never_hangs_or_repeats_a_vsync(cost_ms: int) -> None:
    rig = Rig(idle_costs_ns=cost_ms * MS)
    previous = 0
    for _ in range(20):
        timing = rig.frame(cpu_ns=0, gpu_ns=0)
        assert timing.predicted_display_ns > previous
        assert rig.clock.now <= timing.predicted_display_ns - COMPOSITOR_LEAD_NS
        previous = timing.predicted_display_ns


# -- throttling --


def test_waits_for_the_gpu_when_two_frames_are_uncompleted() -> None:
    rig = Rig()
    rig.frame(gpu_ns=200 * MS)
    rig.frame(gpu_ns=300 * MS)
    first_done = min(done for _, _, done in rig.due)
    rig.driver.wait_frame(rig.idle)
    assert rig.clock.now >= first_done
    assert len(rig.due) == MAX_UNCOMPLETED - 1
    assert rig.driver.throttle_timeouts == 0


def test_gives_up_frames_that_never_complete_and_counts_that() -> None:
    rig = Rig()
    rig.frame(gpu_ns=None)
    rig.frame(gpu_ns=None)
    before = rig.clock.now
    rig.frame()
    assert before + THROTTLE_LIMIT_NS <= rig.clock.now < before + THROTTLE_LIMIT_NS + 100 * MS
    assert rig.driver.throttle_timeouts == 1
    results = rig.finish()
    assert [(r.frame_id, r.dropped) for r in results] == [(1, True), (2, True), (3, False)]
    assert rig.driver.stats().dropped == 2
    rig.driver.frame_completed(1, rig.clock.now)  # told at last: too late to matter
    assert rig.driver.results() == []


# -- account --


def test_a_smooth_run_is_all_fresh() -> None:
    rig = Rig()
    timings = [rig.frame() for _ in range(30)]
    results = rig.finish()
    assert [r.displayed_ns for r in results] == [t.predicted_display_ns for t in timings]
    assert {(r.missed, r.stale_run) for r in results} == {(0, 0)}
    stats = rig.driver.stats()
    assert (stats.vsyncs, stats.fresh, stats.stale, stats.dropped) == (30, 30, 0, 0)
    assert stats.missed_per_1000 == 0.0


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
    assert stats.missed_per_1000 == 500.0


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


# -- misuse --


def test_calls_out_of_order_are_refused() -> None:
    driver = SimulatedDriver(clock=FakeClock())
    with pytest.raises(RuntimeError, match="open"):
        driver.wait_frame(lambda: None)
    driver.open()
    with pytest.raises(RuntimeError, match="wait_frame"):
        driver.begin_frame()
    timing = driver.wait_frame(lambda: None)
    with pytest.raises(RuntimeError, match="not begun"):
        driver.end_frame(timing.frame_id)
    driver.begin_frame()
    with pytest.raises(RuntimeError, match="not begun"):
        driver.end_frame(timing.frame_id + 1)
    with pytest.raises(ValueError, match="never waited for"):
        driver.frame_completed(timing.frame_id + 1, 0)


@pytest.mark.parametrize("hz", [0.0, -90.0, math.nan, math.inf, 1e6])
def test_an_impossible_rate_is_refused(hz: float) -> None:
    with pytest.raises(ValueError, match="refresh rate"):
        SimulatedDriver(hz)


def test_an_empty_view_is_refused() -> None:
    with pytest.raises(ValueError, match="view size"):
        SimulatedDriver(90.0, (0, 720))


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


# -- scripted head --


def test_views_are_a_pure_function_of_time_since_open() -> None:
    clocks = FakeClock(0), FakeClock(987 * MS)
    drivers = [SimulatedDriver(clock=clock) for clock in clocks]
    for driver in drivers:
        driver.open()
    a = drivers[0].locate_views(5_000 * MS)
    assert drivers[0].locate_views(5_000 * MS) == a
    assert drivers[1].locate_views(5_987 * MS) == a


@given(st.floats(0.0, 36_000.0))
def test_eyes_are_one_ipd_apart_along_the_heads_right(seconds: float) -> None:
    left, right = scripted_views(seconds)
    assert math.dist(left.pose.position, right.pose.position) == pytest.approx(IPD_M)
    assert left.pose.orientation == right.pose.orientation
    assert math.hypot(*left.pose.orientation) == pytest.approx(1.0)
    assert left.pose.position[0] < right.pose.position[0]
    assert left.fov.left == -right.fov.right < -left.fov.right == right.fov.left < 0
    for view in (left, right):
        assert math.radians(40) < view.fov.up == -view.fov.down < math.radians(50)
        assert math.radians(40) < -view.fov.left < math.radians(50)


@given(st.floats(0.0, 36_000.0))
def test_the_head_stays_near_and_looks_ahead(seconds: float) -> None:
    view = scripted_views(seconds)[0]
    x, y, z = view.pose.position
    assert abs(x) < 0.08 and abs(y - 1.6) < 0.02 and abs(z) < 0.05
    qx, qy, qz, qw = view.pose.orientation
    ahead = (-2 * (qx * qz + qw * qy), -2 * (qy * qz - qw * qx), -1 + 2 * (qx * qx + qy * qy))
    assert abs(math.degrees(math.atan2(-ahead[0], -ahead[2]))) <= 12.0
    assert abs(math.degrees(math.asin(ahead[1]))) <= 3.0


@given(st.floats(0.0, 3_600.0))
def test_the_head_moves_smoothly(seconds: float) -> None:
    before, after = (scripted_views(t)[0].pose for t in (seconds, seconds + 1 / 90))
    assert math.dist(before.position, after.position) < 0.002
    dot = abs(sum(a * b for a, b in zip(before.orientation, after.orientation, strict=True)))
    assert math.degrees(2 * math.acos(min(1.0, dot))) < 0.2


def test_the_head_does_move() -> None:
    poses = {scripted_views(t)[0].pose for t in range(10)}
    assert len(poses) == 10
