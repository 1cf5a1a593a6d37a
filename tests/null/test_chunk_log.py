"""Chunks from submission to row: completions and GPU stamps come late, out of step, or never."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.chunk_log import ChunkDraft, ChunkLog
from app.telemetry.rows import ChunkRow

MS = 1_000_000


def draft(number: int, **known: Any) -> ChunkDraft:
    """Chunk 1, 2, ... of runs of three, submitted at 10 ms, 20 ms, ... with serials 101, ..."""
    defaults: dict[str, Any] = {
        "id": number, "job": "train", "job_id": 1 + (number - 1) // 3, "index": (number - 1) % 3,
        "of": 3, "dispatches": 7, "frame_id": number, "in_flight": 1, "reason": "frame quota",
        "predicted_ms": 4.0, "submit_ns": number * 10 * MS, "submit_ms": 0.5,
        "serial": 100 + number, "span": 1000 + number,
    }  # fmt: skip
    return ChunkDraft(**(defaults | known))


def log_of(count: int, **known: Any) -> ChunkLog:
    log = ChunkLog()
    for number in range(1, count + 1):
        log.submitted(draft(number, **known))
    return log


def ids(rows: list[ChunkRow]) -> list[int]:
    return [row.id for row in rows]


def test_a_row_tells_the_chunk() -> None:
    log = log_of(1)
    done = log.completed(101, 19 * MS)
    assert done is not None and done.id == 1 and not done.last
    assert log.take() == []  # its stamps are still under way
    stamped = log.stamped(1001, 11 * MS, 18 * MS)
    assert stamped is done
    assert log.take() == [
        ChunkRow(
            id=1,
            job="train",
            job_id=1,
            index=0,
            of=3,
            dispatches=7,
            frame_id=1,
            submit_ns=10 * MS,
            begin_ns=11 * MS,
            end_ns=18 * MS,
            gpu_ms=7.0,
            predicted_ms=4.0,
            done_ns=19 * MS,
            submit_ms=0.5,
            in_flight=1,
            reason="frame quota",
        )
    ]
    assert log.take() == [] and log.finish() == []


def test_in_flight_is_what_has_not_been_seen_complete() -> None:
    log = ChunkLog()
    assert (log.in_flight, log.newest_in_flight) == (0, None)
    log = log_of(3)
    assert (log.in_flight, log.newest_in_flight) == (3, 3)
    assert log.completed(999, 0) is None  # not a chunk's
    log.completed(101, 30 * MS)
    assert (log.in_flight, log.newest_in_flight) == (2, 3)
    log.completed(102, 30 * MS)
    log.completed(103, 30 * MS)
    assert (log.in_flight, log.newest_in_flight) == (0, None)
    assert log.completed(103, 30 * MS) is None


def test_stamps_may_come_before_the_completion_was_seen() -> None:
    log = log_of(1)
    log.stamped(1001, 11 * MS, 12 * MS)
    assert log.take() == [] and log.in_flight == 1
    log.completed(101, 13 * MS)
    (row,) = log.take()
    assert (row.gpu_ms, row.done_ns) == (1.0, 13 * MS)


def test_a_row_waits_for_those_before_it() -> None:
    log = log_of(3)
    for serial in (101, 102, 103):
        log.completed(serial, 40 * MS)
    log.stamped(1003, 35 * MS, 36 * MS)
    log.stamped(1002, 25 * MS, 26 * MS)
    assert log.take() == []
    log.stamped(1001, 15 * MS, 16 * MS)
    assert ids(log.take()) == [1, 2, 3]


def test_stamps_that_are_lost_hold_nothing_up() -> None:
    log = log_of(3)
    for serial in (101, 102, 103):
        log.completed(serial, 40 * MS)
    log.stamped(1002, 25 * MS, 26 * MS)
    assert log.stamped(999, 0, 1) is None  # somebody else's
    log.stamps_passed(1002)
    first, second = log.take()
    assert (first.gpu_ms, first.end_ns) == (None, None)  # nothing is made up
    assert (second.gpu_ms, second.end_ns) == (1.0, 26 * MS)
    log.stamps_passed(1003)  # the third's may still come: it is the newest itself
    assert log.take() == []
    log.stamps_passed(1004)
    assert ids(log.take()) == [3]


def test_without_stamps_completions_bound_the_gpu_time() -> None:
    log = log_of(3, span=None)
    log.completed(101, 14 * MS)
    log.completed(55, 26 * MS)  # a foreign submission, between the first and the second
    log.completed(102, 29 * MS)
    log.completed(103, 29 * MS)  # seen in the same poll
    rows = log.take()
    # From its submission; from the completion before; nothing rather than a negative time.
    assert [row.gpu_ms for row in rows] == [4.0, 3.0, 0.0]
    assert {(row.begin_ns, row.end_ns) for row in rows} == {(None, None)}
    assert [row.done_ns for row in rows] == [14 * MS, 29 * MS, 29 * MS]


def test_finish_gives_the_rest_as_it_is_and_once() -> None:
    log = log_of(4)
    log.completed(101, 14 * MS)
    log.stamped(1001, 11 * MS, 13 * MS)
    log.completed(102, 24 * MS)
    log.stamped(1003, 31 * MS, 33 * MS)
    rows = log.finish()
    assert [(row.done_ns is None, row.gpu_ms) for row in rows] == [
        (False, 2.0), (False, None), (True, 2.0), (True, None),
    ]  # fmt: skip
    assert log.finish() == [] and log.take() == []


@pytest.mark.parametrize(("index", "of", "last"), [(0, 1, True), (1, 3, False), (2, 3, True)])
def test_the_last_chunk_ends_a_run(index: int, of: int, last: bool) -> None:
    assert draft(1, index=index, of=of).last == last


@given(st.lists(st.sampled_from(["submit", "complete", "stamp", "lose", "take"]), max_size=80))
def test_each_row_once_and_in_order(steps: list[str]) -> None:
    log, rows = ChunkLog(), list[ChunkRow]()
    submitted = completed = spans = 0
    lost: set[int] = set()
    for step in steps:
        if step == "submit":
            submitted += 1
            log.submitted(draft(submitted))
        elif step == "complete" and completed < submitted:
            completed += 1
            assert log.completed(100 + completed, (submitted + 1) * 10 * MS) is not None
        elif step in ("stamp", "lose") and spans < completed:
            spans += 1
            if step == "lose":
                lost.add(spans)
                log.stamps_passed(1001 + spans)
            else:
                log.stamped(1000 + spans, spans * 10 * MS, spans * 10 * MS + MS)
        elif step == "take":
            rows += log.take()
            assert len(rows) == spans  # all that is known, and nothing else
        assert log.in_flight == submitted - completed
    rows += log.finish()
    assert ids(rows) == list(range(1, submitted + 1))
    for row in rows:
        assert (row.gpu_ms is None) == (row.id in lost or row.id > spans)
        assert (row.done_ns is None) == (row.id > completed)
