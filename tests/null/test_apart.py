"""Calls in another process: every way in which one can end."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time

import pytest

from app.apart import ApartError, call_apart

PATIENCE_S = 60.0


def process_number() -> int:
    return os.getpid()


def chatter() -> str:
    print("to stdout")
    os.write(2, b"to stderr, past Python\n")
    return "said"


def fail() -> None:
    raise ValueError("a reason\nin two lines")


def fail_silently() -> None:
    raise RuntimeError


def crash() -> None:
    os.abort()


def leave() -> None:
    os._exit(3)


def hang() -> None:
    while True:
        time.sleep(60.0)


def unpicklable() -> threading.Lock:
    return threading.Lock()


def test_result_comes_from_another_process() -> None:
    assert call_apart(process_number, PATIENCE_S) != os.getpid()


def test_what_it_prints_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    assert call_apart(chatter, PATIENCE_S) == "said"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail, "a reason in two lines"),
        (fail_silently, "RuntimeError"),
        (leave, r"a crash \(exit status 3\)"),
        (unpicklable, "pickle"),
    ],
)
def test_failure_is_one_line(function: object, message: str) -> None:
    with pytest.raises(ApartError, match=message) as caught:
        call_apart(function, PATIENCE_S)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="there an abort is no signal")
def test_crash_names_the_signal() -> None:
    with pytest.raises(ApartError, match=r"exit status -6"):
        call_apart(crash, PATIENCE_S)


def test_one_that_hangs_is_killed() -> None:
    with pytest.raises(ApartError, match=r"no answer within 0.5 s"):
        call_apart(hang, 0.5)
    assert multiprocessing.active_children() == []
