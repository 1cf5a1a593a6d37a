"""Spans of passes: their order, their place in time, and what becomes of those given up."""

import time
from itertools import pairwise

import numpy as np
import pytest
from timed_devices import Spin, device_with

from engine.clock import Clock, ClockCalibrator
from engine.errors import GpuError
from engine.gpu import Gpu
from engine.queries import TimestampQueries
from engine.timestamps import PAGE_SPANS, GpuTimer, Span

pytestmark = pytest.mark.gpu

DRIFT_NS = 100_000
"""More than two clocks run apart within a test."""


def timed(gpu: Gpu, timer: GpuTimer, spin: Spin | None = None) -> Span:
    """One timed submission, of an empty pass or the kernel."""
    span = timer.span()
    assert span is not None
    encoder = gpu.device.create_command_encoder()
    gpu.replay(encoder, [spin.command] if spin else [], span.writes)
    gpu.submit(encoder)
    span.recorded()
    return span


def bring(gpu: Gpu, timer: GpuTimer) -> bool:
    """What the frame loop does once a frame."""
    encoder = gpu.device.create_command_encoder()
    due = timer.record(encoder)
    if due:
        timer.submitted(gpu.submit(encoder))
    return due


def finish(gpu: Gpu, timer: GpuTimer) -> list[tuple[int, int, int]]:
    """Everything that is still to come."""
    bring(gpu, timer)
    gpu.wait()
    return timer.take()


def test_spans_arrive_in_order_and_create_nothing(gpu: Gpu) -> None:
    timer, spin = GpuTimer(gpu), Spin(gpu, 10)
    assert timer.available
    before, arrived, numbers = gpu.objects_created, [], []
    # Several times around the ring of pages.
    for frame in range(150):
        numbers += [timed(gpu, timer, spin).number for _ in range(frame % 5)]
        assert bring(gpu, timer) == (frame % 5 > 0)
        if frame % 7 == 0:
            gpu.wait()
        gpu.poll()
        arrived += timer.take()
    arrived += finish(gpu, timer)
    assert gpu.objects_created == before
    assert timer.lost == 0 and timer.take() == []
    assert numbers == list(range(1, len(numbers) + 1))
    assert [number for number, _, _ in arrived] == numbers
    assert all(begin < end for _, begin, end in arrived)
    for (_, _, end), (_, begin, _) in pairwise(arrived):
        assert end <= begin, "one queue runs one submission after the other"


def test_spans_lie_between_submission_and_completion(gpu: Gpu) -> None:
    calibration = ClockCalibrator(gpu).calibrate()
    assert calibration is not None
    clock, timer, spin = Clock(calibration), GpuTimer(gpu, pages=1), Spin(gpu, 200)
    around = {}
    for _ in range(6):
        submit_ns = time.perf_counter_ns()
        number = timed(gpu, timer, spin).number
        gpu.wait()
        around[number] = submit_ns, time.perf_counter_ns()
    error = calibration.error_ns + DRIFT_NS
    arrived = finish(gpu, timer)
    assert len(arrived) == len(around)
    for number, begin, end in arrived:
        submit_ns, done_ns = around[number]
        assert submit_ns - error <= clock.cpu_ns(begin) <= clock.cpu_ns(end) <= done_ns + error


def test_longer_kernels_take_longer(gpu: Gpu) -> None:
    timer, spin = GpuTimer(gpu, pages=1), Spin(gpu, 10)
    timed(gpu, timer, spin)
    spin.set(2_000)
    timed(gpu, timer, spin)
    (_, begin, end), (_, long_begin, long_end) = finish(gpu, timer)
    assert begin <= end <= long_begin <= long_end
    # A CPU device is shared with everything else on the machine: a pause falls where it likes.
    assert gpu.facts.is_cpu or long_end - long_begin > 10 * (end - begin)


def test_a_span_may_be_brought_home_by_its_own_encoder(gpu: Gpu) -> None:
    timer = GpuTimer(gpu, pages=1)
    for turn in range(1, 4):
        span = timer.span()
        assert span is not None
        encoder = gpu.device.create_command_encoder()
        gpu.replay(encoder, [], span.writes)
        span.recorded()
        assert timer.record(encoder)
        assert timer.take() == []
        timer.submitted(gpu.submit(encoder))
        gpu.wait()
        ((number, begin, end),) = timer.take()
        assert number == span.number == turn and 0 < begin <= end


def test_nothing_recorded_is_nothing_due(gpu: Gpu) -> None:
    timer = GpuTimer(gpu, pages=1)
    assert not bring(gpu, timer)
    span = timer.span()
    assert span is not None
    assert not bring(gpu, timer), "the pass is not on the queue yet"
    encoder = gpu.device.create_command_encoder()
    gpu.replay(encoder, [], span.writes)
    gpu.submit(encoder)
    span.recorded()
    assert [number for number, _, _ in finish(gpu, timer)] == [span.number]


def test_spans_given_up_leave_gaps_only(gpu: Gpu) -> None:
    timer, kept, given_up = GpuTimer(gpu, pages=2), [], 0
    arrived = []
    for turn in range(5 * PAGE_SPANS):
        if turn % 3 == 1:
            span = timer.span()
            assert span is not None
            if turn % 2:
                dropped = gpu.device.create_command_encoder()
                gpu.replay(dropped, [], span.writes)
                dropped.finish()
            given_up += 1
        else:
            kept.append(timed(gpu, timer).number)
        if turn % 10 == 9:
            arrived += finish(gpu, timer)
    arrived += finish(gpu, timer)
    assert [number for number, _, _ in arrived] == kept
    assert timer.lost == given_up


def test_whole_pages_given_up_are_used_again(gpu: Gpu) -> None:
    timer = GpuTimer(gpu, pages=2)
    for turn in range(1, 4):
        assert all(timer.span() for _ in range(2 * PAGE_SPANS))
        assert not bring(gpu, timer)
        assert timer.lost == turn * 2 * PAGE_SPANS
    kept = timed(gpu, timer)
    assert [number for number, _, _ in finish(gpu, timer)] == [kept.number]


def test_more_spans_than_slots_are_refused_and_counted(gpu: Gpu) -> None:
    timer = GpuTimer(gpu, pages=2)
    first = [timed(gpu, timer).number for _ in range(2 * PAGE_SPANS)]
    assert [timer.span() for _ in range(5)] == [None] * 5
    assert timer.lost == 5
    assert bring(gpu, timer)
    assert timer.span() is None, "slots are free when their stamps have been taken"
    gpu.wait()
    assert [number for number, _, _ in timer.take()] == first
    last = timed(gpu, timer)
    assert [number for number, _, _ in finish(gpu, timer)] == [last.number]
    assert last.number == len(first) + 1


def test_an_encoder_dropped_after_record_takes_its_spans_with_it(gpu: Gpu) -> None:
    timer = GpuTimer(gpu, pages=1)
    for turn in range(1, 4):
        timed(gpu, timer)
        dropped = gpu.device.create_command_encoder()
        assert timer.record(dropped)
        dropped.finish()
        assert not bring(gpu, timer)
        assert timer.lost == turn
    kept = timed(gpu, timer)
    assert [number for number, _, _ in finish(gpu, timer)] == [kept.number]


def test_a_thousand_spans_fit_in_flight(gpu: Gpu) -> None:
    timer = GpuTimer(gpu)
    encoder = gpu.device.create_command_encoder()
    for _ in range(1_000):
        span = timer.span()
        assert span is not None
        gpu.replay(encoder, [], span.writes)
        span.recorded()
    gpu.submit(encoder)
    assert [number for number, _, _ in finish(gpu, timer)] == list(range(1, 1_001))


def test_without_timestamps_everything_is_quietly_off(gpu: Gpu) -> None:
    bare = device_with(gpu, [])
    before = bare.objects_created
    timer = GpuTimer(bare)
    assert not timer.available
    assert timer.span() is None and timer.take() == [] and timer.lost == 0
    assert not timer.record(bare.device.create_command_encoder())
    assert bare.objects_created == before
    with pytest.raises(GpuError, match="no timestamp queries"):
        TimestampQueries(bare, 2)


def test_a_span_that_ends_before_it_begins_is_lost(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = GpuTimer(gpu, pages=1)
    numbers = [timed(gpu, timer).number for _ in range(3)]
    monkeypatch.setattr(TimestampQueries, "nanoseconds", lambda *_: [10, 20, 2**36, 5, 30, 30])
    assert finish(gpu, timer) == [(numbers[0], 10, 20), (numbers[2], 30, 30)]
    assert timer.lost == 1


def test_raw_units_become_nanoseconds(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.array([7, 2**62 + 1, 0], np.uint64).view(np.uint8)
    assert TimestampQueries(gpu, 2).nanoseconds(data, 2) == [7, 2**62 + 1]
    monkeypatch.setattr(Gpu, "timestamp_period_ns", 52.5)
    assert TimestampQueries(gpu, 2).nanoseconds(data, 1) == [368]
