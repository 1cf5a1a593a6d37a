import pytest

from app.xr.openxr.session_life import Call, SessionLife, State

WHOLE = [
    State.IDLE,
    State.READY,
    State.SYNCHRONIZED,
    State.VISIBLE,
    State.FOCUSED,
    State.VISIBLE,
    State.SYNCHRONIZED,
    State.STOPPING,
    State.IDLE,
    State.EXITING,
]


def test_a_whole_life() -> None:
    life = SessionLife()
    calls = [life.changed(state) for state in WHOLE]
    assert [(state.name, call) for state, call in zip(WHOLE, calls, strict=True) if call] == [
        ("READY", Call.BEGIN),
        ("STOPPING", Call.END),
    ]
    assert life.states == [state.name for state in WHOLE]
    assert life.ended and not life.running and not life.lost


def test_taken_off_and_put_on_again() -> None:
    life = SessionLife()
    running = []
    for state in (*WHOLE[:9], *WHOLE[1:5]):
        life.changed(state)
        running.append(life.running)
    assert running == [False, *[True] * 6, False, False, *[True] * 4]
    assert life.focused and not life.ended


def test_no_second_begin_or_end() -> None:
    life = SessionLife()
    assert life.changed(State.STOPPING) is None
    assert life.changed(State.READY) is Call.BEGIN
    assert life.changed(State.READY) is None


@pytest.mark.parametrize("before", [State.IDLE, State.FOCUSED])
def test_loss(before: State) -> None:
    life = SessionLife()
    life.changed(before)
    assert life.changed(State.LOSS_PENDING) is None
    assert life.lost


def test_unknown_states_are_passed_over() -> None:
    life = SessionLife()
    life.changed(State.FOCUSED)
    assert life.changed(1_000_999) is None
    assert life.state is State.FOCUSED and life.states == ["FOCUSED"]
