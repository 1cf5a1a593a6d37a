"""Frames from their start to their row: verdicts, stamps and chunks come late, or never."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.frame_log import MOST_OPEN, FrameDraft, FrameLog
from app.telemetry.rows import ChunkRow, FrameRow
from app.xr.driver import FrameResult, FrameTiming

MS = 1_000_000
PERIOD = 10 * MS


def timing(number: int, *, should_render: bool = True) -> FrameTiming:
    """Frame 1, 2, ... is waited for at 10 ms, 20 ms, ..., due 10 and shown 12 ms later."""
    wait_ns = number * PERIOD
    return FrameTiming(number, wait_ns + 12 * MS, PERIOD, should_render, wait_ns + 10 * MS)


class Log:
    """A log whose frames have serials 1001, ... and, when stamped, spans 501, ..."""

    def __init__(self, *, stamps: bool = False) -> None:
        self.stamps = stamps
        self.rows: list[FrameRow] = []
        self.log = FrameLog(self.rows.append)

    def start(self, number: int, *, should_render: bool = True) -> FrameDraft:
        draft = self.log.start(timing(number, should_render=should_render), number * PERIOD)
        if should_render:
            draft.serial = 1000 + number
            draft.span = 500 + number if self.stamps else None
        return draft

    def ids(self) -> list[int]:
        return [row.id for row in self.rows]


def shown(number: int, missed: int = 0, stale_run: int = 0) -> FrameResult:
    return FrameResult(number, (number + missed) * PERIOD + 12 * MS, missed, stale_run)


def chunk(number: int, frame_id: int, gpu_ms: float | None) -> ChunkRow:
    return ChunkRow(
        id=number, job="train", job_id=1, index=0, of=1, dispatches=1, frame_id=frame_id,
        submit_ns=0, gpu_ms=gpu_ms, in_flight=1, reason="",
    )  # fmt: skip


def test_a_row_tells_the_frame() -> None:
    log = Log(stamps=True)
    log.start(1)
    draft = log.start(2)
    draft.begin_ns, draft.locate_ns, draft.submit_ns, draft.end_ns = 1, 2, 21 * MS, 4
    draft.submit_ms, draft.in_flight_at_submit, draft.camera_age_ms = 0.5, 3, 17.0
    draft.behind_chunk, draft.margin_ms, draft.presenter_ms = 7, 1.25, 0.25
    log.log.count_chunks(2, "frame quota used")
    log.log.chunk_known(chunk(8, 2, 1.5))
    log.log.chunk_known(chunk(9, 2, 2.0))
    assert log.log.completed(1002, 2 * PERIOD + 15 * MS) is draft
    log.log.stamped(501, 11 * MS, 12 * MS)
    assert log.log.stamped(502, 30 * MS, 34 * MS) is draft
    log.start(3)
    log.log.settle([shown(1), shown(2, missed=1, stale_run=1)])
    row = log.rows[1]
    assert row == FrameRow(
        id=2,
        predicted_display_ns=32 * MS,
        due_ns=30 * MS,
        wait_ns=20 * MS,
        begin_ns=1,
        locate_ns=2,
        submit_ns=21 * MS,
        end_ns=4,
        eye_begin_ns=30 * MS,
        eye_end_ns=34 * MS,
        gpu_done_ns=35 * MS,
        frame_ms=14.0,
        interval_ms=10.0,
        eye_ms=4.0,
        submit_ms=0.5,
        slack_ms=-4.0,
        missed=1,
        stale_run=1,
        displayed_ns=42 * MS,
        chunks_run=2,
        chunk_gpu_ms=3.5,
        in_flight_at_submit=3,
        behind_chunk=7,
        cause="chunk",
        withheld="frame quota used",
        margin_ms=1.25,
        presenter_ms=0.25,
        camera_age_ms=17.0,
    )
    assert log.rows[0].interval_ms is None
    assert (log.rows[0].chunks_run, log.rows[0].chunk_gpu_ms) == (0, 0.0)


def test_the_newest_frame_waits_for_its_last_chunks() -> None:
    log = Log()
    log.start(1)
    log.log.count_chunks(1)
    log.log.chunk_known(chunk(1, 1, 1.0))
    log.log.completed(1001, 15 * MS)
    log.log.settle([shown(1)])
    assert log.rows == []
    log.log.count_chunks(2, "in-flight bound")  # idling after its verdict
    log.start(2)
    log.log.settle([])
    assert log.rows == []  # the second chunk is still at work
    log.log.chunk_known(chunk(2, 1, 2.0))
    log.log.settle([])
    (row,) = log.rows
    assert (row.chunks_run, row.chunk_gpu_ms, row.withheld) == (2, 3.0, "in-flight bound")


@pytest.mark.parametrize("times", [(1.0, None), (None, 1.0), (None, None)])
def test_a_chunk_of_unknown_time_makes_the_sum_unknown(times: tuple[float | None, ...]) -> None:
    log = Log()
    log.start(1)
    log.log.count_chunks(2)
    for number, gpu_ms in enumerate(times, start=1):
        log.log.chunk_known(chunk(number, 1, gpu_ms))
    log.log.chunk_known(chunk(3, 99, 5.0))  # of a frame that is not ours
    log.start(2)
    log.log.settle([shown(1)])
    assert (log.rows[0].chunks_run, log.rows[0].chunk_gpu_ms) == (2, None)


def test_chunks_count_for_the_newest_frame_only() -> None:
    log = Log()
    log.log.count_chunks(9)  # no frame yet
    for number, chunks in ((1, 2), (2, 0), (3, 5)):
        log.start(number)
        log.log.count_chunks(chunks)
    log.log.finish()
    assert [row.chunks_run for row in log.rows] == [2, 0, 5]
    assert [row.chunk_gpu_ms for row in log.rows] == [None, 0.0, None]


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


def test_a_row_waits_for_its_stamps_unless_they_are_lost() -> None:
    log = Log(stamps=True)
    for number in (1, 2, 3):
        log.start(number)
    log.log.settle([shown(1), shown(2)])
    assert log.rows == []
    log.log.stamped(502, 25 * MS, 27 * MS)
    log.log.settle([])
    assert log.rows == []
    log.log.stamps_passed(502)
    log.log.settle([])
    assert [(row.id, row.eye_ms) for row in log.rows] == [(1, None), (2, 2.0)]


def test_a_frame_that_was_not_rendered_needs_no_verdict() -> None:
    log = Log()
    log.start(1, should_render=False)
    log.log.settle([])
    assert log.rows == []
    log.start(2)
    log.log.settle([])
    (row,) = log.rows
    assert (row.id, row.missed, row.submit_ns, row.cause) == (1, None, None, "")


def test_eyes_wait_for_what_the_eyes_ahead_of_them_wait_for() -> None:
    log = Log()
    first = log.start(1)
    first.behind_chunk = log.log.chunk_ahead(7)
    second = log.start(2)
    second.behind_chunk = log.log.chunk_ahead(None)  # 7 is done, but not the first eyes
    assert (first.behind_chunk, second.behind_chunk) == (7, 7)
    log.start(3)
    assert log.log.chunk_ahead(9) == 9
    assert log.log.chunk_ahead(None) == 7
    log.log.completed(1001, 0)
    log.log.completed(1002, 0)
    assert log.log.chunk_ahead(None) is None


def test_a_driver_that_counts_anew_does_not_repeat_numbers() -> None:
    log = Log()
    log.start(1)
    log.start(2)
    log.log.settle([shown(1)])
    log.log.finish()  # the headset was lost
    log.start(1)
    log.log.count_chunks(1)
    log.log.chunk_known(chunk(1, 3, 2.5))
    log.log.presented(1, 0.75, 64)
    log.start(2)
    log.log.settle([shown(1)])
    assert log.ids() == [1, 2, 3]
    assert log.rows[1].missed is None and log.rows[2].missed == 0
    assert (log.rows[2].chunk_gpu_ms, log.rows[2].presenter_ms) == (2.5, 0.75)
    assert log.rows[2].presenter_bytes == 64


def test_a_verdict_that_never_comes_does_not_keep_the_others_for_ever() -> None:
    log = Log()
    for number in range(1, MOST_OPEN + 3):
        log.start(number)
        if number > 1:
            log.log.settle([shown(number)])
        assert len(log.log._drafts) <= MOST_OPEN
    assert log.ids() == list(range(1, MOST_OPEN + 2))
    assert [row.missed for row in log.rows] == [None] + [0] * MOST_OPEN


def test_what_is_not_ours_is_ignored() -> None:
    log = Log(stamps=True)
    log.start(1)
    assert log.log.completed(5, 0) is None
    assert log.log.stamped(5, 0, 1) is None
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
        assert row.cause == ""
    assert log.rows[1].frame_ms is None and log.rows[1].slack_ms is None


steps = st.sampled_from(["start", "hidden", "verdict", "complete", "stamp", "lose", "chunk"])


@given(st.lists(steps, max_size=80))
def test_each_row_once_and_in_order(steps: list[str]) -> None:
    log = Log(stamps=True)
    started = chunks = 0
    waiting: dict[str, list[int]] = {name: [] for name in ("verdict", "complete", "stamp", "chunk")}
    for step in steps:
        if step in ("start", "hidden"):
            started += 1
            log.start(started, should_render=step == "start")
            if step == "start":
                for name in ("verdict", "complete", "stamp"):
                    waiting[name].append(started)
            log.log.count_chunks(1)
            waiting["chunk"].append(started)
        elif step == "lose" and waiting["stamp"]:
            log.log.stamps_passed(501 + waiting["stamp"].pop(0))
        elif waiting.get(step):
            number = waiting[step].pop(0)
            if step == "complete":
                log.log.completed(1000 + number, number * PERIOD + MS)
            elif step == "stamp":
                log.log.stamped(500 + number, number * PERIOD, number * PERIOD + MS)
            elif step == "chunk":
                chunks += 1
                log.log.chunk_known(chunk(chunks, number, 1.0))
            else:
                log.log.settle([shown(number)])
        log.log.settle([])
        # Known is what waits for nothing but its completion, and is not the newest.
        held = [waiting[name][0] for name in ("verdict", "stamp", "chunk") if waiting[name]]
        assert log.ids() == list(range(1, min([*held, max(started, 1)])))
    log.log.finish()
    assert log.ids() == list(range(1, started + 1))


@pytest.mark.parametrize("done", [None, 15 * MS])
def test_frame_time_needs_a_completion(done: int | None) -> None:
    row = FrameDraft(1, timing(1), PERIOD, gpu_done_ns=done).row()
    assert (row.frame_ms, row.slack_ms) == ((5.0, 5.0) if done else (None, None))


def test_gpu_stamps_tell_better_than_completions_when_the_eyes_were_done() -> None:
    row = FrameDraft(
        1, timing(1), PERIOD, eye_begin_ns=12 * MS, eye_end_ns=14 * MS, gpu_done_ns=15 * MS
    ).row()
    assert (row.frame_ms, row.slack_ms, row.eye_ms) == (4.0, 6.0, 2.0)


@pytest.mark.parametrize(
    ("known", "missed", "stale_run", "cause"),
    [
        # On time, or not judged at all.
        ({}, 0, 0, ""),
        ({"behind_chunk": 3}, 0, 0, ""),
        ({}, None, 0, ""),
        # Started and submitted early enough for 4 ms of eyes.
        ({"behind_chunk": 3}, 1, 1, "chunk"),
        ({"behind_chunk": 3}, 2, 0, "chunk"),  # dropped: no stale refresh of its own
        ({}, 1, 1, "render"),
        # Submitted too late for 4 ms of eyes, whatever stood ahead.
        ({"submit_ns": 17 * MS, "behind_chunk": 3}, 1, 1, "start"),
        ({"submit_ns": 17 * MS}, 1, 1, "start"),
        ({"submit_ns": 16 * MS, "behind_chunk": 3}, 1, 1, "chunk"),  # just in time
        ({"wait_ns": 17 * MS, "submit_ns": 18 * MS, "behind_chunk": 3}, 1, 1, "start"),
        # Eyes that do not fit into a period, however early they start.
        ({"eye_end_ns": 25 * MS, "behind_chunk": 3}, 1, 1, "render"),
        # Refreshes for which no frame was started, before one that was on time.
        ({"behind_chunk": 3}, 0, 2, "start"),
        # Without stamps the eyes may have taken no time.
        ({"eye_end_ns": None, "behind_chunk": 3}, 1, 1, "chunk"),
        ({"eye_end_ns": None}, 1, 1, "render"),
        ({"eye_end_ns": None, "submit_ns": 21 * MS, "behind_chunk": 3}, 1, 1, "start"),
    ],
)
def test_the_cause_of_a_miss(
    known: dict[str, Any], missed: int | None, stale_run: int, cause: str
) -> None:
    times = {"wait_ns": PERIOD, "submit_ns": 11 * MS}
    times |= {"eye_begin_ns": 14 * MS, "eye_end_ns": 18 * MS}
    draft = FrameDraft(1, timing(1), **(times | known))
    draft.result = None if missed is None else shown(1, missed, stale_run)
    assert draft.cause() == draft.row().cause == cause
