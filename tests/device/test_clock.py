"""Calibrating the device's clock against the host's."""

import time
from itertools import pairwise

import pytest
from timed_devices import Spin, device_with

from engine.clock import Clock, ClockCalibrator
from engine.gpu import Gpu
from engine.queries import TimestampQueries

pytestmark = pytest.mark.gpu

STEEPEST_PPM = 500
"""Quartz clocks run apart by less."""


def test_calibrations_agree_and_the_later_ones_create_nothing(gpu: Gpu) -> None:
    calibrator = ClockCalibrator(gpu)
    assert calibrator.available
    before = gpu.objects_created
    found = [calibrator.calibrate() for _ in range(4)]
    assert gpu.objects_created == before
    for earlier, later in pairwise(found):
        assert earlier is not None and later is not None
        passed = later.at_ns - earlier.at_ns
        assert passed > 0 and later.error_ns > 0
        apart = abs(later.offset_ns - earlier.offset_ns)
        assert apart <= earlier.error_ns + later.error_ns + passed * STEEPEST_PPM // 10**6
    assert found[0] is not None and found[3] is not None
    clock = Clock(found[0], found[3])
    assert clock.error_us == max(found[0].error_ns, found[3].error_ns) / 1e3


def test_a_pass_lies_between_its_submission_and_its_completion(gpu: Gpu) -> None:
    calibration = ClockCalibrator(gpu).calibrate()
    assert calibration is not None
    clock, queries, spin = Clock(calibration), TimestampQueries(gpu, 2), Spin(gpu, 100)
    readback = queries.readback(2)
    for _ in range(5):
        encoder = gpu.device.create_command_encoder()
        gpu.replay(encoder, [spin.command], queries.writes(0))
        submit_ns = time.perf_counter_ns()
        gpu.submit(encoder)
        gpu.wait()
        done_ns = time.perf_counter_ns()
        begin, end = (clock.cpu_ns(stamp) for stamp in queries.read(2, readback))
        error = calibration.error_ns + (done_ns - calibration.at_ns) * STEEPEST_PPM // 10**6
        assert submit_ns - error <= begin < end <= done_ns + error


def test_time_may_run_out_after_the_first_marker(gpu: Gpu) -> None:
    calibrator = ClockCalibrator(gpu)
    first, full = calibrator.calibrate(limit_s=0.0), calibrator.calibrate()
    assert first is not None and full is not None
    drift = (full.at_ns - first.at_ns) * STEEPEST_PPM // 10**6
    assert abs(first.offset_ns - full.offset_ns) <= first.error_ns + full.error_ns + drift


def test_work_under_way_is_waited_for(gpu: Gpu) -> None:
    calibrator, spin = ClockCalibrator(gpu, markers=8), Spin(gpu, 4_000)
    encoder = gpu.device.create_command_encoder()
    gpu.replay(encoder, [spin.command])
    serial = gpu.submit(encoder)
    assert calibrator.calibrate() is not None
    assert gpu.completed > serial


def test_without_timestamps_there_is_no_calibration(gpu: Gpu) -> None:
    bare = device_with(gpu, [])
    before = bare.objects_created
    calibrator = ClockCalibrator(bare)
    assert not calibrator.available
    assert calibrator.calibrate() is None
    assert bare.objects_created == before
