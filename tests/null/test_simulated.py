"""Pacing and throttling of the simulated headset on a fake clock."""

from __future__ import annotations

import math

import pytest
from xr_rig import MS, FakeClock, Rig

from app.xr.driver import XrDriver
from app.xr.simulated import (
    COMPOSITOR_LEAD_NS,
    IDLE_EVERY_NS,
    LATEST_START,
    MAX_UNCOMPLETED,
    THROTTLE_LIMIT_NS,
    SimulatedDriver,
)

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


def test_eyes_are_due_when_the_compositor_latches() -> None:
    rig = Rig(hz=72.0)
    rig.frame()
    for _ in range(3):
        timing = rig.driver.wait_frame(rig.idle)
        assert timing.due_ns == timing.predicted_display_ns - COMPOSITOR_LEAD_NS
        assert timing.due_ns - rig.clock.now == pytest.approx(rig.period, abs=10_000)


# -- frames that nobody sees --


@pytest.mark.parametrize("asked", ["each frame", "at the end"])
@pytest.mark.parametrize("hidden", [(5,), (5, 6, 7, 8), (1, 3, 5, 6), (11, 12)])
def test_hidden_frames_are_paced_alike_but_have_no_outcome(
    hidden: tuple[int, ...], asked: str
) -> None:
    rig = Rig()
    timings, results = [], []
    for number in range(1, 13):
        rig.driver.visible = number not in hidden
        # Nothing is drawn while hidden, so nothing completes.
        timings.append(rig.frame(gpu_ns=MS if rig.driver.visible else None))
        if asked == "each frame":
            results += rig.driver.results()
    assert tuple(t.frame_id for t in timings if not t.should_render) == hidden
    vsyncs = [rig.vsync_of(t.predicted_display_ns) for t in timings]
    assert vsyncs == list(range(vsyncs[0], vsyncs[0] + 12))
    results += rig.finish()
    assert [r.frame_id for r in results] == [n for n in range(1, 13) if n not in hidden]
    # The refreshes in between showed nothing of ours, and so no old image either.
    assert {(r.missed, r.stale_run, r.dropped) for r in results} == {(0, 0, False)}
    stats = rig.driver.stats()
    assert (stats.fresh, stats.stale, stats.dropped) == (12 - len(hidden), 0, 0)
    assert rig.driver.throttle_timeouts == 0


def test_a_late_frame_after_a_hidden_time_is_late_still() -> None:
    rig = Rig()
    rig.driver.visible = False
    rig.frame(gpu_ns=None)
    rig.driver.visible = True
    rig.frame(gpu_ns=14 * MS)
    rig.frame()
    rig.frame()
    late, *others = rig.finish()
    assert (late.frame_id, late.missed) == (2, 1)
    assert [r.frame_id for r in others] == [3, 4]


def test_never_visible() -> None:
    rig = Rig()
    rig.driver.visible = False
    for _ in range(20):
        assert not rig.frame(gpu_ns=None).should_render
    assert rig.finish() == [] and rig.driver.stats().vsyncs == 0


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


def test_a_frame_that_was_seen_complete_holds_nothing_back_but_waits_for_its_time() -> None:
    rig = Rig()
    for _ in range(6):
        timing = rig.frame(gpu_ns=None)
        rig.driver.frame_completed(timing.frame_id, rig.clock.now + 3 * MS, exact=False)
    assert rig.driver.throttle_timeouts == 0
    rig.clock.now += 100 * MS
    assert rig.driver.results() == []
    for number in range(1, 7):
        rig.driver.frame_completed(number, rig.epoch + number * rig.period + 3 * MS)
    ends = rig.driver.results()
    assert [r.frame_id for r in ends] == list(range(1, 7)) and not any(r.dropped for r in ends)
    # Told again it is too late.
    rig.driver.frame_completed(6, rig.clock.now, exact=False)
    assert rig.driver.results() == []


@pytest.mark.parametrize("late_ms", [0, 4, 9, 14])
def test_the_exact_time_decides_not_when_it_was_seen(late_ms: int) -> None:
    rig = Rig()
    rig.frame()
    timing = rig.frame(gpu_ns=None)
    rig.driver.frame_completed(timing.frame_id, timing.due_ns + 30 * MS, exact=False)
    rig.driver.frame_completed(timing.frame_id, timing.due_ns - 5 * MS + late_ms * MS)
    rig.frame()
    _, second, _ = rig.finish()
    assert (second.frame_id, second.missed) == (2, 0 if late_ms <= 5 else 1)


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


def test_views_are_a_pure_function_of_time_since_open() -> None:
    clocks = FakeClock(0), FakeClock(987 * MS)
    drivers = [SimulatedDriver(clock=clock) for clock in clocks]
    for driver in drivers:
        driver.open()
    a = drivers[0].locate_views(5_000 * MS)
    assert drivers[0].locate_views(5_000 * MS) == a
    assert drivers[1].locate_views(5_987 * MS) == a
