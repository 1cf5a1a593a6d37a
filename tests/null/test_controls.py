"""What each action does to the session, and what the HUD says about it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.preview.actions import Action, Kind
from app.preview.controls import MAX_IN_FLIGHT, Controls
from app.preview.dashboard import MESSAGE_NS, REFRESH_NS, TRACE_POINTS, Dashboard
from app.telemetry.rows import ChunkRow, FrameRow, QualityRow
from app.tenancy.policy import FixedPolicy

MS = 1_000_000


def stub(**state: object) -> Any:
    return SimpleNamespace(**state)


class Rig:
    def __init__(self, *, mirror: bool = True) -> None:
        self.tenant = stub(chunks=4, policy=FixedPolicy(2), training=True, mode="both")
        self.infer = stub(before=False)
        self.scene = stub(hud_visible=True)
        self.mirror: Any = stub(view="both") if mirror else None
        self.dashboard = Dashboard()
        self.controls = Controls(self.tenant, self.infer, self.scene, self.mirror, self.dashboard)

    def apply(self, kind: Kind, value: int = 0) -> str:
        """The message afterwards."""
        self.controls.apply(Action(kind, value))
        return str(self.dashboard.state().message)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("mirror", [False, True])
def test_every_action_is_known(kind: Kind, mirror: bool) -> None:
    Rig(mirror=mirror).apply(kind, 1)


def test_chunks() -> None:
    rig = Rig()
    assert rig.apply(Kind.CHUNKS, 16) == "16 chunks per job"
    assert rig.tenant.chunks == 16
    assert rig.apply(Kind.CHUNKS, 1) == "1 chunk per job"


def test_in_flight_stays_possible() -> None:
    rig = Rig()
    for value, wanted in ((1, 3), (-1, 2), (-1, 1), (-1, 1)):
        assert rig.apply(Kind.IN_FLIGHT, value) == f"in-flight bound {wanted}"
        assert rig.tenant.policy.in_flight == wanted
    for _ in range(MAX_IN_FLIGHT + 3):
        rig.apply(Kind.IN_FLIGHT, 1)
    assert rig.tenant.policy.in_flight == MAX_IN_FLIGHT


def test_policies_and_jobs_go_round() -> None:
    rig = Rig()
    names = [rig.apply(Kind.POLICY).removesuffix(" policy") for _ in range(3)]
    assert names == ["greedy", "deadline", "fixed"]
    assert rig.tenant.policy.in_flight == 2
    assert [rig.apply(Kind.JOB) for _ in range(3)] == ["job: train", "job: infer", "job: both"]
    rig.tenant.mode = "none"  # as --job none asks for
    assert rig.apply(Kind.JOB) == "job: train"


def test_training_and_view() -> None:
    rig = Rig()
    assert (rig.apply(Kind.TRAIN), rig.tenant.training) == ("training paused", False)
    assert (rig.apply(Kind.TRAIN), rig.tenant.training) == ("training on", True)
    views = []
    for _ in range(2):
        rig.apply(Kind.VIEW)
        views.append(rig.mirror.view)
    assert views == ["left", "both"]
    assert (rig.apply(Kind.COMPARE), rig.infer.before) == (
        "painting with the weights of the start",
        True,
    )
    assert (rig.apply(Kind.COMPARE), rig.infer.before) == (
        "painting with the newest weights",
        False,
    )


def test_help_is_seen_without_the_hud_too() -> None:
    rig = Rig()
    seen = []
    for kind in (Kind.HUD, Kind.HELP, Kind.HUD, Kind.HUD, Kind.HELP, Kind.HUD):
        rig.apply(kind)
        seen.append((rig.scene.hud_visible, rig.controls.help))
    shown = [(False, False), (True, True), (True, True), (True, True), (False, False)]
    assert seen == [*shown, (True, False)]


def test_wishes_are_taken_once() -> None:
    rig = Rig()
    assert not rig.controls.take(Kind.SAVE)
    rig.apply(Kind.SAVE)
    rig.apply(Kind.RECORD)
    assert rig.controls.take(Kind.SAVE) and not rig.controls.take(Kind.SAVE)
    assert rig.controls.take(Kind.RECORD)
    assert not rig.controls.quit
    rig.apply(Kind.QUIT)
    assert rig.controls.quit


def test_dashboard_is_drawn_five_times_a_second_and_at_once_for_news() -> None:
    board = Dashboard()
    assert [board.due(t * MS) for t in (1, 2, 200, 202, 300)] == [True, False, False, True, False]
    board.say("news")
    assert board.due(301 * MS)
    assert not board.due(301 * MS + REFRESH_NS - 1)


def test_messages_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 5 * MS
    monkeypatch.setattr("time.perf_counter_ns", lambda: now_ns)
    board = Dashboard()
    board.say("hello")
    now_ns += MESSAGE_NS - 1
    assert board.state().message == "hello"
    now_ns += 1
    assert board.state().message == ""


def chunk(job: Any, index: int, submit_ms: int, done_ms: int) -> ChunkRow:
    return ChunkRow(
        id=1, job=job, job_id=1, index=index, of=2, dispatches=1, frame_id=1,
        submit_ns=submit_ms * MS, done_ns=done_ms * MS, in_flight=1, reason="",
    )  # fmt: skip


def test_rows_become_what_the_hud_shows() -> None:
    board = Dashboard()
    state = board.state()
    assert (state.infer_ms, state.frame_ms) == (None, ())
    for number, missed in enumerate((0, 2, None)):
        known = None if missed is None else 7.0 + number
        row = FrameRow(
            id=number + 1,
            predicted_display_ns=0,
            due_ns=0,
            wait_ns=0,
            frame_ms=known,
            missed=missed,
        )
        board.add_frame(row)
    for index, job in enumerate(("infer", "infer", "train", "train")):
        board.add_chunk(chunk(job, index % 2, 10 * index, 10 * index + 8))
    state = board.state(("help",), chunks=2, missed=5)
    assert tuple(state.frame_ms) == (7.0, 8.0)
    assert tuple(state.missed_recent) == (False, True)
    assert state.infer_ms == pytest.approx(18.0)
    assert len(board.steps._times) == 1
    assert (state.chunks, state.missed, tuple(state.help_lines)) == (2, 5, ("help",))


def test_gpu_stamps_tell_who_used_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter_ns", lambda: 3000 * MS)
    board = Dashboard()
    for end_ms, eye_ms in ((500, 999.0), (2000, 400.0), (2900, 100.0)):
        board.add_frame(
            FrameRow(
                id=1, predicted_display_ns=0, due_ns=0, wait_ns=0,
                eye_end_ns=end_ms * MS, eye_ms=eye_ms,
            )
        )  # fmt: skip
    for index, gpu_ms in ((0, 200.0), (1, 300.0)):
        row = replace(chunk("train", index, 0, 2500), end_ns=2400 * MS, gpu_ms=gpu_ms)
        board.add_chunk(row)
    board.add_chunk(replace(chunk("infer", 0, 0, 0), done_ns=None))  # never completed
    # Of the last two seconds.
    assert board.state().gpu_share == {"render": 0.25, "train": 0.25}


def test_an_inference_ends_when_the_gpu_says_so() -> None:
    board = Dashboard()
    board.add_chunk(chunk("infer", 0, 10, 18))
    board.add_chunk(replace(chunk("infer", 1, 20, 40), end_ns=33 * MS))
    assert board.state().infer_ms == 23.0


def test_the_held_out_curve_keeps_its_ends_however_long_it_gets() -> None:
    board = Dashboard()
    for ns in range(5 * TRACE_POINTS):
        db = None if ns % 7 == 3 else float(ns)
        board.add_quality(
            QualityRow(
                measured_ns=ns, step=ns, photo=0, photo_db=db, held_out_db=db, camera_db=None
            )
        )
    curve = board.state().held_out
    assert TRACE_POINTS / 3 < len(curve) <= TRACE_POINTS
    assert curve[0] == (0, 0.0) and curve[-1] == (ns, float(ns))
    assert list(curve) == sorted(curve) and all(time == db for time, db in curve)
