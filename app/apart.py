"""Calling a function in a process of its own: what it loads can neither hang nor crash this one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")

LEAVE_S = 5.0
"""A process killed that does not end by then is left alone: it is stuck in a driver."""


class ApartError(Exception):
    """The function gave no result; the message says why in one line."""


def call_apart(function: Callable[[], T], limit_s: float) -> T:
    """What `function` returns when a new process calls it; that one is killed after `limit_s`.

    The process imports the function by its name and pickles the result; what it prints is dropped.
    Raises `ApartError` when the function raises, crashes or does not return in time.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(function, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise ApartError(f"no answer within {limit_s:g} s")
        result, fault = receiver.recv()
    except EOFError:
        process.join(LEAVE_S)
        raise ApartError(f"a crash (exit status {process.exitcode})") from None
    finally:
        receiver.close()
        process.kill()
        process.join(LEAVE_S)
    if fault is not None:
        raise ApartError(fault)
    return result


def _answer(function: Callable[[], T], sender: Connection) -> None:
    """Send the function's result, or its exception's message; in the other process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        sender.send((function(), None))
    except Exception as error:
        sender.send((None, " ".join(str(error).split()) or type(error).__name__))
