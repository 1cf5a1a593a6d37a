"""Calibrating the render load against devices that are made up: linear or nearly, and noisy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from app.config import PreviewConfig, UsageError
from app.scene.load import FIRST_LOAD, GROWTH, MAX_LOAD, calibrate_load

TOLERANCE = 0.03


class Device:
    """Takes `base_ms` and `ms_per_sample`, both bent by `shape`; keeps what it was asked."""

    def __init__(
        self,
        base_ms: float,
        ms_per_sample: float,
        noise: Callable[[], float] = lambda: 1.0,
        shape: Callable[[float], float] = lambda ms: ms,
    ) -> None:
        self.base_ms, self.ms_per_sample, self.noise, self.shape = (
            base_ms,
            ms_per_sample,
            noise,
            shape,
        )
        self.asked: list[int] = []

    def true_ms(self, load: int) -> float:
        return self.shape(self.base_ms + self.ms_per_sample * load)

    def measure(self, load: int) -> float:
        self.asked.append(load)
        return self.true_ms(load) * self.noise()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.85])
@pytest.mark.parametrize(("base_ms", "ms_per_sample"), [(0.09, 0.0026), (0.5, 0.04), (0.0, 1e-4)])
def test_a_linear_device_is_calibrated_in_few_measurements(
    share: float, base_ms: float, ms_per_sample: float
) -> None:
    device, target = Device(base_ms, ms_per_sample), share * 11.1
    load = calibrate_load(device.measure, target)
    assert device.true_ms(load) == pytest.approx(target, rel=TOLERANCE)
    assert len(device.asked) <= 7 and len(set(device.asked)) == len(device.asked)


SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda ms: ms,
    "never below": lambda ms: max(ms, 1.5),
    "slower when hot": lambda ms: ms * (1 + 0.02 * ms),
    "faster when busy": lambda ms: ms / (1 + 0.02 * ms),
    "a step": lambda ms: ms + 0.4 * (ms > 5),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_and_bends_are_coped_with(shape: str, rng: np.random.Generator) -> None:
    for target in (3.3, 6.7, 9.4):
        for _ in range(30):
            device = Device(0.09, 0.0026, lambda: rng.normal(1.0, 0.01), SHAPES[shape])
            load = calibrate_load(device.measure, target)
            # What was measured is within 3 %; the noise of that measurement adds to it.
            assert device.true_ms(load) == pytest.approx(target, rel=TOLERANCE + 0.04)
            assert len(device.asked) <= 12


def test_outliers_are_survived(rng: np.random.Generator) -> None:
    def noise() -> float:
        return rng.normal(1.0, 0.01) * (3.0 if rng.random() < 0.1 else 1.0)

    errors = []
    for _ in range(200):
        device = Device(0.09, 0.0026, noise)
        load = calibrate_load(device.measure, 6.7)
        errors.append(abs(device.true_ms(load) / 6.7 - 1))
    assert np.mean(np.array(errors) < 0.07) > 0.9


def test_a_bare_scene_above_the_target_stays_bare() -> None:
    device = Device(7.0, 0.01)
    assert calibrate_load(device.measure, 5.0) == 0
    assert device.asked == [0]


def test_a_bare_scene_at_the_target_stays_bare() -> None:
    device = Device(4.9, 0.01)
    assert calibrate_load(device.measure, 5.0) == 0
    assert device.asked == [0]


def test_a_slow_device_gets_the_nearest_load() -> None:
    device = Device(2.0, 3.5)
    assert calibrate_load(device.measure, 8.0) == 2
    assert calibrate_load(device.measure, 3.0) == 0


def test_a_target_out_of_reach_gives_the_greatest_load() -> None:
    for load in (MAX_LOAD, 100, 3):
        device = Device(0.1, 1e-6)
        assert calibrate_load(device.measure, 50.0, max_load=load) == load
        assert max(device.asked) == load and device.asked.count(load) == 1


def test_no_load_is_much_above_one_known_to_be_fast_enough(rng: np.random.Generator) -> None:
    device = Device(0.09, 0.0005, lambda: rng.normal(1.0, 0.2))
    calibrate_load(device.measure, 9.4)
    for number, load in enumerate(device.asked):
        assert load <= max(FIRST_LOAD, GROWTH * max(device.asked[:number], default=0))


def test_a_device_that_only_makes_noise_ends_the_search(rng: np.random.Generator) -> None:
    asked: list[int] = []

    def measure(load: int) -> float:
        asked.append(load)
        return rng.uniform(0.1, 3.0) if load else 0.1

    assert 0 <= calibrate_load(measure, 2.0, tolerance=1e-9, measurements=9) <= MAX_LOAD
    assert len(asked) <= 9


@pytest.mark.parametrize("ms", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(ms: float) -> None:
    with pytest.raises(ValueError, match="no GPU time was measured at a render load of 0"):
        calibrate_load(lambda load: ms, 5.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_ms": 0.0},
        {"target_ms": float("nan")},
        {"target_ms": float("inf")},
        {"tolerance": 0.0},
        {"measurements": 0},
        {"max_load": 0},
    ],
)
def test_impossible_demands_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        calibrate_load(lambda load: 1.0, **{"target_ms": 5.0, **wrong})  # type: ignore[arg-type]


def test_the_option_is_checked() -> None:
    for load in (0, MAX_LOAD):
        PreviewConfig(scene_load=load).check()
    for load in (-1, MAX_LOAD + 1):
        with pytest.raises(UsageError, match=f"--scene-load must be 0 to 1000000, not {load}"):
            PreviewConfig(scene_load=load).check()
