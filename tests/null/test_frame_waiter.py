from threading import Event, get_ident

import pytest

from app.xr.openxr.waiter import FrameWaiter

LONG_S = 30.0


def test_waits_in_another_thread_and_answers_once() -> None:
    gate = Event()
    threads = []

    def wait() -> int:
        threads.append(get_ident())
        gate.wait(LONG_S)
        return len(threads)

    waiter = FrameWaiter(wait)
    waiter.request()
    waiter.request()  # pending already
    assert waiter.pending and waiter.answer(0.001) is None
    gate.set()
    assert waiter.answer(LONG_S) == 1
    assert not waiter.pending and waiter.answer(0.001) is None
    waiter.request()
    assert waiter.answer(LONG_S) == 2
    assert get_ident() not in threads
    assert waiter.close()


def test_errors_come_out_where_the_answer_is_taken() -> None:
    def wait() -> int:
        raise ValueError("gone")

    waiter = FrameWaiter(wait)
    for _ in range(2):
        waiter.request()
        with pytest.raises(ValueError, match="gone"):
            waiter.answer(LONG_S)
    assert waiter.close()


def test_close_tells_when_the_thread_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.xr.openxr.waiter.JOIN_S", 0.01)
    gate = Event()
    waiter = FrameWaiter(lambda: gate.wait(LONG_S))
    waiter.request()
    assert not waiter.close()
    gate.set()
