from hypothesis import given
from hypothesis import strategies as st

from app.xr.openxr import xr_time

moments = st.integers(-(2**62), 2**62)


@given(moments)
def test_timespec_and_back(ns: int) -> None:
    seconds, nanoseconds = xr_time.to_timespec(ns)
    assert 0 <= nanoseconds < xr_time.SECOND_NS
    assert xr_time.from_timespec(seconds, nanoseconds) == ns


@given(moments, st.sampled_from([10_000_000, 3_579_545, 24_000_000, 1_000_000_000]))
def test_ticks_and_back_within_a_tick(ns: int, frequency: int) -> None:
    back = xr_time.from_ticks(xr_time.to_ticks(ns, frequency), frequency)
    assert 0 <= ns - back <= -(-xr_time.SECOND_NS // frequency)


def test_half_a_second_in_ticks() -> None:
    assert xr_time.to_ticks(1_500_000_000, 10_000_000) == 15_000_000
    assert xr_time.from_ticks(15_000_000, 10_000_000) == 1_500_000_000


def test_times_that_a_runtime_refuses() -> None:
    assert [xr_time.is_usable(time) for time in (-5, 0, 1, 2**62)] == [False, False, True, True]
