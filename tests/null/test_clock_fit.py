"""Fitting two clocks to markers, and mapping between them: arithmetic on a made-up device."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.clock import Calibration, Clock, Marker

DELAYS = st.tuples(st.integers(0, 90_000), st.integers(0, 5_000), st.integers(0, 90_000))
"""Nanoseconds from the submission to the pass, of the pass, and to its completion being seen."""


def markers(offset: int, delays: list[tuple[int, int, int]], drift: float = 0.0) -> list[Marker]:
    """What a device would report whose clock lags the host's by `offset`, and ever more so."""
    found, host = [], 10**13
    for before, inside, after in delays:
        begin, end, done = host + before, host + before + inside, host + before + inside + after
        lag = offset + round(drift * (host - 10**13))
        found.append(Marker(host, begin - lag, end - lag, done))
        host = done + 1_000
    return found


@given(st.integers(-(10**12), 10**12), st.lists(DELAYS, min_size=1, max_size=40))
def test_the_true_offset_lies_within_the_error(
    offset: int, delays: list[tuple[int, int, int]]
) -> None:
    made = markers(offset, delays)
    found = Calibration.fit(made)
    assert found is not None
    assert abs(found.offset_ns - offset) <= found.error_ns
    narrowest = min(before + after for before, _, after in delays)
    assert found.error_ns <= (narrowest + 1) // 2
    assert made[0].submit_ns <= found.at_ns <= made[-1].done_ns


@given(st.lists(DELAYS, min_size=2, max_size=20), st.lists(DELAYS, min_size=1, max_size=20))
def test_more_markers_never_widen_the_error(
    delays: list[tuple[int, int, int]], more: list[tuple[int, int, int]]
) -> None:
    few, many = Calibration.fit(markers(7, delays)), Calibration.fit(markers(7, delays + more))
    assert few is not None and many is not None and many.error_ns <= few.error_ns


def test_known_markers_give_the_middle() -> None:
    late_begin = Marker(submit_ns=1_000, begin_ns=150, end_ns=160, done_ns=1_100)
    early_end = Marker(submit_ns=2_000, begin_ns=1_110, end_ns=1_120, done_ns=2_080)
    # 850 <= offset <= 940 and 890 <= offset <= 960.
    assert Calibration.fit([late_begin, early_end]) == Calibration(915, 25, 1_540)


def test_clocks_that_run_apart_widen_the_error() -> None:
    # 100 <= offset <= 120 and 200 <= offset <= 230.
    made = [Marker(1_100, 1_000, 1_000, 1_120), Marker(2_200, 2_000, 2_000, 2_230)]
    assert Calibration.fit(made) == Calibration(160, 40 + 20, 1_665)
    drifting = markers(500, [(2_000, 0, 2_000)] * 50, drift=0.1)
    found = Calibration.fit(drifting)
    assert found is not None
    for marker in drifting:
        assert marker.submit_ns - marker.begin_ns <= found.offset_ns + found.error_ns
        assert marker.done_ns - marker.end_ns >= found.offset_ns - found.error_ns


def test_markers_that_make_no_sense_are_left_out() -> None:
    good = Marker(1_100, 1_000, 1_000, 1_120)
    bad = [
        Marker(5_000, 0, 0, 5_100),
        Marker(5_000, 4_000, 3_000, 5_100),
        Marker(5_000, 4_000, 4_500, 5_100),
        Marker(5_100, 4_000, 4_000, 5_000),
    ]
    for marker in bad:
        assert Calibration.fit([marker]) is None
        assert Calibration.fit([marker, good]) == Calibration.fit([good])
    assert Calibration.fit([]) is None


def test_one_calibration_shifts_and_two_also_stretch() -> None:
    start, end = Calibration(500, 20, 10_000), Calibration(600, 30, 1_010_100)
    assert Clock(start).cpu_ns(123) == 623
    assert Clock(start).drift_ppm is None and Clock(start).error_us == 0.02
    clock = Clock(start, end)
    assert clock.cpu_ns(9_500) == 10_000
    assert clock.cpu_ns(1_009_500) == 1_010_100
    assert clock.cpu_ns(509_500) == 509_500 + 550
    assert clock.drift_ppm == pytest.approx(100.0)
    assert clock.error_us == 0.03


@given(
    st.integers(10**17, 2 * 10**18),
    st.integers(-(10**18), 10**18),
    st.integers(-300, 300),
    st.integers(10**9, 10**14),
    st.floats(-0.1, 1.1),
)
def test_a_steady_drift_is_mapped_exactly(
    gpu_ns: int, offset: int, ppm: int, passed: int, place: float
) -> None:
    def host(gpu_time: int) -> int:
        return gpu_time + offset + (gpu_time - gpu_ns) * ppm // 10**6

    first, last = host(gpu_ns), host(gpu_ns + passed)
    start = Calibration(first - gpu_ns, 0, first)
    end = Calibration(last - gpu_ns - passed, 0, last)
    clock, between = Clock(start, end), gpu_ns + int(place * passed)
    assert abs(clock.cpu_ns(between) - host(between)) <= 2
    assert clock.drift_ppm == pytest.approx(ppm, abs=0.01)


@pytest.mark.parametrize("at_ns", [9_000, 10_000])
def test_an_end_before_the_start_is_refused(at_ns: int) -> None:
    with pytest.raises(ValueError, match="must be later than its start"):
        Clock(Calibration(0, 1, 10_000), Calibration(0, 1, at_ns))


def test_the_record_of_a_clock_is_plain_json() -> None:
    start, end = Calibration(-500, 20_500, 10**12), Calibration(-400, 9_000, 2 * 10**12)
    record = json.loads(json.dumps(Clock(start, end).to_json()))
    assert record == {
        "start": {"offset_ns": -500, "error_us": 20.5, "at_ns": 10**12},
        "end": {"offset_ns": -400, "error_us": 9.0, "at_ns": 2 * 10**12},
        "drift_ppm": pytest.approx(1e-4),
        "error_us": 20.5,
    }
    assert Clock(start).to_json()["end"] is None
