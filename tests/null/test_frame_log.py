from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.frame_log import Draft, FrameLog
from app.telemetry.rows import FrameRow
from app.xr.driver import FrameResult, FrameTiming

MS = 1_000_000
PERIOD = 10 * MS


class Log:
    """A log with frames 1, 2, ... waited for at 10 ms, 20 ms, ... and shown 12 ms later."""

    def __init__(self) -> None:
        self.rows: list[FrameRow] = []
        self.log = FrameLog(self.rows.append)

    def start(self, number: int) -> Draft:
        wait_ns = number * PERIOD
        draft = self.log.start(FrameTiming(number, wait_ns + 12 * MS, PERIOD, True), wait_ns)
        draft.serial = 1000 + number
        return draft

    def ids(self) -> list[int]:
        return [row.id for row in self.rows]


def shown(number: int, missed: int = 0, stale_run: int = 0) -> FrameResult:
    return FrameResult(number, (number + missed) * PERIOD + 12 * MS, missed, stale_run)


def test_a_row_tells_the_frame() -> None:
    log = Log()
    log.start(1)
    draft = log.start(2)
    draft.begin_ns, draft.locate_ns, draft.submit_ns, draft.end_ns = 1, 2, 3, 4
    draft.submit_ms, draft.in_flight_at_submit, draft.camera_age_ms = 0.5, 3, 17.0
    log.log.count_chunks(2)
    assert log.log.completed(1002, 2 * PERIOD + 9 * MS) is draft
    log.start(3)
    log.log.settle([shown(1), shown(2, missed=1, stale_run=1)])
    row = log.rows[1]
    assert row == FrameRow(
        id=2,
        predicted_display_ns=32 * MS,
        wait_ns=20 * MS,
        begin_ns=1,
        locate_ns=2,
        submit_ns=3,
        end_ns=4,
        gpu_done_ns=29 * MS,
        frame_ms=9.0,
        interval_ms=10.0,
        submit_ms=0.5,
        slack_ms=3.0,
        missed=1,
        stale_run=1,
        displayed_ns=42 * MS,
        chunks_run=2,
        in_flight_at_submit=3,
        camera_age_ms=17.0,
    )
    assert log.rows[0].interval_ms is None


def test_the_newest_frame_waits_for_its_last_chunks() -> None:
    log = Log()
    log.start(1)
    log.log.count_chunks(1)
    log.log.completed(1001, 15 * MS)
    log.log.settle([shown(1)])
    assert log.rows == []
    log.log.count_chunks(4)  # idling after its verdict
    log.start(2)
    log.log.settle([])
    assert log.ids() == [1]
    assert log.rows[0].chunks_run == 4


def test_chunks_count_for_the_newest_frame_only() -> None:
    log = Log()
    log.log.count_chunks(9)  # no frame yet
    for number, chunks in ((1, 2), (2, 0), (3, 5)):
        log.start(number)
        log.log.count_chunks(chunks)
    log.log.finish()
    assert [row.chunks_run for row in log.rows] == [2, 0, 5]


def test_an_overtaken_frame_is_dropped() -> None:
    log = Log()
    for number in (1, 2, 3):
        log.start(number)
    log.log.settle([FrameResult(1, 0, 2, 1), shown(2, missed=1, stale_run=1)])
    assert [(row.id, row.missed, row.displayed_ns is None) for row in log.rows] == [
        (1, 2, True),
        (2, 1, False),
    ]


def test_a_late_completion_still_gets_into_the_row() -> None:
    log = Log()
    for number in (1, 2, 3):
        log.start(number)
    log.log.settle([shown(2)])  # its row waits: frame 1 has no verdict yet
    assert log.rows == []
    log.log.completed(1002, 25 * MS)
    log.log.settle([FrameResult(1, 0, 1, 0)])
    assert log.ids() == [1, 2]
    assert log.rows[1].gpu_done_ns == 25 * MS


def test_what_is_not_ours_is_ignored() -> None:
    log = Log()
    log.start(1)
    assert log.log.completed(5, 0) is None
    log.log.settle([shown(99)])
    assert log.rows == []


def test_finish_emits_what_never_got_a_verdict() -> None:
    log = Log()
    log.start(1)
    log.start(2).serial = None  # never submitted
    log.log.completed(1001, 15 * MS)
    log.log.finish()
    log.log.finish()
    assert log.ids() == [1, 2]
    assert log.rows[0].frame_ms == 5.0
    for row in log.rows:
        assert row.missed is None and row.stale_run is None and row.displayed_ns is None
    assert log.rows[1].frame_ms is None and log.rows[1].slack_ms is None


@given(st.lists(st.sampled_from(["start", "verdict", "complete"]), max_size=60))
def test_each_row_once_and_in_order(steps: list[str]) -> None:
    log = Log()
    started = verdicts = completed = 0
    for step in steps:
        if step == "start":
            started += 1
            log.start(started)
        elif step == "verdict" and verdicts < started:
            verdicts += 1
            log.log.settle([shown(verdicts)])
        elif step == "complete" and completed < started:
            completed += 1
            log.log.completed(1000 + completed, completed * PERIOD + MS)
        assert log.ids() == list(range(1, len(log.rows) + 1))
        assert all(row.missed is not None for row in log.rows)
        assert len(log.rows) >= min(verdicts, started - 1) or step != "verdict"
    log.log.finish()
    assert log.ids() == list(range(1, started + 1))


@pytest.mark.parametrize("done", [None, 15 * MS])
def test_frame_time_needs_a_completion(done: int | None) -> None:
    draft = Draft(FrameTiming(1, 22 * MS, PERIOD, True), PERIOD, gpu_done_ns=done)
    row = draft.row()
    assert (row.frame_ms, row.slack_ms) == ((5.0, 7.0) if done else (None, None))
