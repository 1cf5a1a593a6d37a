import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.xr.driver import FrameResult
from app.xr.openxr.outcomes import MOST_OPEN, Outcomes

PERIOD = 10_000
LATCH = 3_000  # before the display
LATER = 10**9


def display(refresh: int) -> int:
    return 1_000_000 + refresh * PERIOD


class Session:
    """Frames with ids from 1, predicted for given refreshes."""

    def __init__(self) -> None:
        self.outcomes = Outcomes()
        self.results: list[FrameResult] = []

    def waited(self, frame_id: int, refresh: int) -> None:
        at = display(refresh)
        self.outcomes.waited(frame_id, at, at - LATCH, PERIOD)

    def ended(self, frame_id: int, refresh: int, image_id: int, late_ns: int = -1) -> None:
        ended_ns = display(refresh) - LATCH + late_ns
        self.results += self.outcomes.take(ended_ns)
        self.outcomes.ended(frame_id, image_id, ended_ns)

    def finish(self) -> list[FrameResult]:
        self.results += self.outcomes.take(LATER)
        return self.results


def test_every_frame_in_time_with_its_own_image() -> None:
    session = Session()
    for frame in range(1, 6):
        session.waited(frame, frame)
        session.ended(frame, frame, frame)
    assert session.finish() == [FrameResult(n, display(n), 0, 0) for n in range(1, 6)]


def test_an_image_one_frame_late() -> None:
    session = Session()
    session.waited(1, 1)
    session.ended(1, 1, 0)
    for frame in range(2, 5):
        session.waited(frame, frame)
        session.ended(frame, frame, frame - 1)
    assert session.finish() == [FrameResult(n, display(n + 1), 1, 0) for n in range(1, 4)]


def test_a_repeated_image_is_a_stale_refresh() -> None:
    session = Session()
    for frame, image in ((1, 1), (2, 1), (3, 1), (4, 4)):
        session.waited(frame, frame)
        session.ended(frame, frame, image)
    assert session.finish() == [
        FrameResult(1, display(1), 0, 0),
        FrameResult(2, 0, 2, 2),
        FrameResult(3, 0, 1, 2),
        FrameResult(4, display(4), 0, 2),
    ]


@pytest.mark.parametrize(("late_ns", "refreshes"), [(0, 0), (1, 1), (PERIOD, 1), (PERIOD + 1, 2)])
def test_ended_after_the_latch(late_ns: int, refreshes: int) -> None:
    session = Session()
    session.waited(1, 1)
    session.ended(1, 1, 1)
    session.waited(2, 2)
    session.ended(2, 2, 2, late_ns)
    shown = display(2 + refreshes)
    assert session.finish()[1] == FrameResult(2, shown, refreshes, refreshes)


def test_a_late_frame_overtaken_on_its_way() -> None:
    session = Session()
    session.waited(1, 1)
    session.ended(1, 1, 1, late_ns=1)  # for refresh 2
    session.waited(2, 2)
    session.ended(2, 2, 2)  # for refresh 2 as well
    assert session.finish() == [FrameResult(1, 0, 1, 0), FrameResult(2, display(2), 0, 0)]


def test_refreshes_without_a_frame_are_stale() -> None:
    session = Session()
    for frame, refresh in ((1, 1), (2, 4)):
        session.waited(frame, refresh)
        session.ended(frame, refresh, frame)
    assert session.finish()[1] == FrameResult(2, display(4), 0, 2)


def test_nothing_is_known_before_the_display() -> None:
    session = Session()
    session.waited(1, 1)
    session.ended(1, 1, 1)
    assert session.outcomes.take(display(1) - 1) == []
    assert session.outcomes.take(display(1)) == [FrameResult(1, display(1), 0, 0)]
    assert session.outcomes.take(LATER) == []


def test_hidden_time_is_nobodys_fault() -> None:
    session = Session()
    session.waited(1, 1)
    session.ended(1, 1, 1)
    session.waited(2, 2)
    session.outcomes.hidden()
    session.waited(3, 500)
    session.ended(3, 500, 3)
    assert session.finish() == [
        FrameResult(1, display(1), 0, 0),
        FrameResult(2, 0, 1, 0),
        FrameResult(3, display(500), 0, 0),
    ]


def test_frames_that_never_get_an_image_are_given_up() -> None:
    session = Session()
    for frame in range(1, MOST_OPEN + 11):
        session.waited(frame, frame)
        session.ended(frame, frame, 0)
    results = session.finish()
    assert [result.frame_id for result in results] == list(range(1, 11))
    assert all(result.dropped and result.missed >= 1 for result in results)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(-5, 3 * PERIOD)),
        min_size=1,
        max_size=40,
    )
)
def test_each_frame_once_in_order_and_refreshes_add_up(
    steps: list[tuple[int, int, int]],
) -> None:
    """Whatever a runtime predicts and whenever images arrive."""
    session = Session()
    refresh = newest = 0
    for frame, (step, age, late_ns) in enumerate(steps, start=1):
        refresh += step
        newest = max(newest, frame - age)
        session.waited(frame, refresh)
        session.ended(frame, refresh, max(0, newest), late_ns)
    results = session.finish()
    assert [result.frame_id for result in results] == list(range(1, len(results) + 1))
    assert all(result.missed >= (1 if result.dropped else 0) for result in results)
    shown = [result for result in results if not result.dropped]
    assert [r.displayed_ns for r in shown] == sorted({r.displayed_ns for r in shown})
    if shown:
        spanned = (shown[-1].displayed_ns - shown[0].displayed_ns) // PERIOD
        assert spanned == len(shown) - 1 + sum(result.stale_run for result in shown)
