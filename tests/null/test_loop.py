"""The frame loop with a recorded device: what it calls, in which order, and whom it tells."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.camera import Frame
from app.loop import IDLE_CHUNKS, FrameLoop
from app.telemetry.rows import ChunkRow, FrameRow
from app.telemetry.stamps import Stamps
from app.tenancy.policy import (
    MARGIN_DECAY,
    MARGIN_GROWTH,
    POLICIES,
    RESULT_DELAY_FRAMES,
    START_MARGIN_MS,
    DeadlinePolicy,
    FixedPolicy,
    GreedyPolicy,
    Policy,
    make_policy,
)
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameResult, FrameTiming, XrLost
from app.xr.presenter import Presented
from engine.clock import Calibration, Clock
from engine.timestamps import Span


class StubGpu:
    """A device whose encoders are lists; work completes at the `delay`-th poll after it."""

    def __init__(self, calls: list[str], delay: int = 1) -> None:
        self.calls, self.delay = calls, delay
        self.device = SimpleNamespace(create_command_encoder=list)
        self.serial = 0
        self.kinds: dict[int, str] = {}
        self.completed = 0
        self._busy: deque[list[int]] = deque()
        self._done: list[tuple[int, int]] = []

    def submit(self, encoder: list[str]) -> int:
        assert encoder, "an empty submission"
        self.serial += 1
        self.kinds[self.serial] = encoder[0]
        self.calls.append(f"submit {encoder[0]}")
        self._busy.append([self.serial, self.delay])
        return self.serial

    def poll(self) -> None:
        for entry in self._busy:
            entry[1] -= 1
        while self._busy and self._busy[0][1] <= 0:
            self.completed = self._busy.popleft()[0]
            self._done.append((self.completed, time.perf_counter_ns()))

    def wait(self) -> None:
        self.calls.append("device idle")
        while self._busy:
            self.poll()

    def take_completions(self) -> list[tuple[int, int]]:
        done, self._done = self._done, []
        return done


OFFSET_NS = 7_000
"""What the host's clock is ahead of the GPU's."""


class StubTimer:
    """Span n runs from n ms for n us on the GPU's clock; those in `lost` never arrive."""

    def __init__(self, gpu: StubGpu, lost: frozenset[int], refuse_every: int) -> None:
        self.gpu, self.lost, self.refuse_every = gpu, lost, refuse_every
        self.spans: list[Span] = []
        self.asked = self._resolved = 0
        self.strict = True
        self._under_way: deque[tuple[int, list[Span]]] = deque()

    def span(self) -> Span | None:
        self.asked += 1
        if self.refuse_every and self.asked % self.refuse_every == 0:
            return None
        self.spans.append(Span(len(self.spans) + 1, {"query": len(self.spans) + 1}))
        return self.spans[-1]

    def record(self, encoder: list[str]) -> bool:
        assert not self.strict or all(span.is_recorded for span in self.spans), "given up"
        if self._resolved == len(self.spans):
            return False
        encoder.append("stamps")
        return True

    def submitted(self, serial: int) -> None:
        self._under_way.append((serial, self.spans[self._resolved :]))
        self._resolved = len(self.spans)

    def take(self) -> list[tuple[int, int, int]]:
        arrived: list[tuple[int, int, int]] = []
        while self._under_way and self._under_way[0][0] <= self.gpu.completed:
            _, spans = self._under_way.popleft()
            numbers = [s.number for s in spans if s.is_recorded and s.number not in self.lost]
            arrived += [(n, n * 1_000_000, n * 1_001_000) for n in numbers]
        return arrived


class StubPresenter:
    """Takes the eyes along in their own submission."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.frames: list[int] = []
        self.serials: list[int] = []

    def record(self, encoder: list[str], frame_id: int) -> None:
        assert encoder == ["eyes"]
        encoder.append("present")
        self.calls.append("present")
        self.frames.append(frame_id)

    def submitted(self, serial: int) -> None:
        self.serials.append(serial)


class StubDriver:
    """Idles `idles` times per wait; every second completed frame was a refresh late.

    `hidden`: frames that nobody would see. `lost_at`: the frame in which the headset is lost.
    """

    name, view_size = "stub", (8, 8)

    def __init__(
        self, calls: list[str], idles: int, hidden: frozenset[int], lost_at: int = 0
    ) -> None:
        self.calls, self.idles, self.hidden, self.lost_at = calls, idles, hidden, lost_at
        self.presenter: StubPresenter | None = None
        self.seen: dict[int, int] = {}
        self.frame_id = 0
        self.completed: dict[int, int] = {}
        self._results: list[FrameResult] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def wait_frame(self, idle: Callable[[], None]) -> FrameTiming:
        self.calls.append("wait")
        for _ in range(self.idles):
            idle()
        self.frame_id += 1
        seen = self.frame_id not in self.hidden
        return FrameTiming(self.frame_id, 10**18 + self.frame_id, 10**10, seen, 10**18)

    def begin_frame(self) -> None:
        self.calls.append("begin")

    def locate_views(self, display_ns: int) -> Any:
        assert display_ns == 10**18 + self.frame_id
        if self.frame_id == self.lost_at:
            raise XrLost("the headset is gone")
        self.calls.append("locate")
        return ("left", "right")

    def end_frame(self, frame_id: int) -> None:
        assert frame_id == self.frame_id
        self.calls.append("end")

    def frame_completed(self, frame_id: int, completed_ns: int, *, exact: bool = True) -> None:
        assert 1 <= frame_id <= self.frame_id
        if not exact:
            self.seen[frame_id] = completed_ns
            return
        assert frame_id not in self.completed
        self.completed[frame_id] = completed_ns
        self._results.append(FrameResult(frame_id, completed_ns, frame_id % 2, frame_id % 2))

    def presented(self) -> list[Presented]:
        frames = self.presenter.frames if self.presenter else []
        told = [Presented(number, number - 1, number / 4) for number in frames]
        frames.clear()
        return told

    def results(self) -> list[FrameResult]:
        results, self._results = self._results, []
        return results


class StubScene:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.images: list[int] = []
        self.stamps: list[Any] = []

    def encode(self, encoder: list[str], stamps: Any = None) -> None:
        self.calls.append("encode")
        encoder.append("eyes")
        self.stamps.append(stamps)

    def set_views(self, views: Any) -> None:
        assert views == ("left", "right")
        self.calls.append("set_views")

    def set_camera(self, image: np.ndarray) -> None:
        self.calls.append("set_camera")
        self.images.append(int(image[0, 0, 0]))


class StubCamera:
    """A new image every other time one is asked for."""

    def __init__(self) -> None:
        self.asked = 0
        self.frame: Frame | None = None

    def latest(self) -> Frame | None:
        self.asked += 1
        if self.asked % 2 == 0:
            number = self.asked // 2
            image = np.full((2, 2, 3), number, np.uint8)
            self.frame = Frame(image, time.perf_counter_ns(), number)
        return self.frame


class StubJob:
    name = "train"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.runs = 0
        self.polls = 0
        self.stamps: list[Any] = []

    def cut(self, chunks: int) -> None:
        self.chunks = [(n, n + 1) for n in range(chunks)]

    def chunk_ms(self, index: int, chunks: int) -> float:
        return 1.0

    def due(self, now_ns: int) -> bool:
        return True

    def begin(self) -> None:
        self.calls.append("feed")

    def encode(self, encoder: list[str], index: int, stamps: Any = None) -> None:
        encoder.append("chunk")
        self.stamps.append(stamps)

    def submitted(self, index: int, serial: int) -> None: ...

    def completed(self) -> None:
        self.runs += 1

    def poll(self) -> None:
        self.polls += 1


class StubViewer:
    """Draws every `every`-th time it is asked; 0: never."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.asked = self.drawn = self.polls = 0
        self.serials: list[int] = []

    def draw(self, encoder: list[str]) -> bool:
        self.asked += 1
        if not self.every or self.asked % self.every:
            return False
        self.drawn += 1
        encoder.append("mirror")
        return True

    def submitted(self, serial: int) -> None:
        self.serials.append(serial)

    def poll(self) -> None:
        self.polls += 1


class LearningPolicy(FixedPolicy):
    def __init__(self, in_flight: int) -> None:
        super().__init__(in_flight)
        self.outcomes: list[tuple[int, bool]] = []

    def frame_finished(self, missed: int, *, by_chunk: bool) -> None:
        self.outcomes.append((missed, by_chunk))


class Rig:
    def __init__(
        self,
        policy: Policy | None = None,
        *,
        chunks: int = 3,
        idles: int = 2,
        delay: int = 1,
        viewers: tuple[StubViewer, ...] = (),
        hidden: frozenset[int] = frozenset(),
        stamps: bool = False,
        lost: frozenset[int] = frozenset(),
        refuse_every: int = 0,
    ) -> None:
        self.calls: list[str] = []
        self.gpu = StubGpu(self.calls, delay)
        self.driver = StubDriver(self.calls, idles, hidden)
        self.timer = StubTimer(self.gpu, lost, refuse_every)
        clock = Clock(Calibration(OFFSET_NS, 10, 0)) if stamps else None
        self.stamps = Stamps(self.timer, clock)  # type: ignore[arg-type]
        self.scene, self.camera = StubScene(self.calls), StubCamera()
        self.job = StubJob(self.calls)
        self.policy = policy or LearningPolicy(1)
        self.tenant = Tenant(
            {"train": self.job},
            self.policy,
            chunks=chunks,
            mode="train",
            new_encoder=list,
            submit=self.gpu.submit,
            span=self.stamps.span,
        )
        self.frames: list[FrameRow] = []
        self.chunks: list[ChunkRow] = []
        self.loop = FrameLoop(
            self.gpu,  # type: ignore[arg-type]
            self.driver,  # type: ignore[arg-type]
            self.scene,  # type: ignore[arg-type]
            self.tenant,
            self.camera.latest,
            self.stamps,
            viewers=viewers,
            before_frame=lambda: self.calls.append("before_frame"),
            after_submit=lambda: self.calls.append("after_submit"),
            on_frame=self.frames.append,
            on_chunk=self.chunks.append,
        )

    def run(self, frames: int) -> None:
        self.loop.run(lambda: self.loop.frames < frames)
        self.loop.finish()

    def frame_calls(self) -> list[list[str]]:
        """The calls of each frame, from its wait to the next one's."""
        found: list[list[str]] = []
        for call in self.calls:
            if call == "wait":
                found.append([])
            found[-1].append(call)
        return found


ORDER = ["wait", "before_frame", "begin", "encode", "locate", "set_views", "submit eyes", "end"]


@given(
    chunks=st.integers(1, 5),
    bound=st.integers(1, 5),
    idles=st.integers(0, 4),
    delay=st.integers(1, 6),
    policy=st.sampled_from(POLICIES),
    stamps=st.booleans(),
)
def test_the_order_of_a_frame(
    chunks: int, bound: int, idles: int, delay: int, policy: str, stamps: bool
) -> None:
    rig = Rig(
        make_policy(policy, bound),
        chunks=chunks,
        idles=idles,
        delay=delay,
        viewers=(StubViewer(1),),
        stamps=stamps,
    )
    rig.run(8)
    frames = rig.frame_calls()
    assert len(frames) == 8
    for calls in frames:
        assert [call for call in calls if call in ORDER] == ORDER
        # Late latching: between locating the views and submitting the eyes there is nothing else.
        locate = calls.index("locate")
        assert calls[locate : locate + 3] == ["locate", "set_views", "submit eyes"]
        # Nor does anything go ahead of the eyes once the frame has started.
        started = calls[calls.index("before_frame") : locate]
        assert set(started) <= {"before_frame", "begin", "encode"}
        after = calls[calls.index("end") + 1 :]
        assert next(call for call in after if call != "set_camera") == "submit mirror"
        assert "set_camera" not in after[after.index("submit mirror") :]
        assert "after_submit" in after
    assert rig.gpu.kinds[rig.gpu.serial] != "eyes"
    assert Counter(rig.calls)["submit chunk"] == len(rig.chunks)
    assert max((row.in_flight for row in rig.chunks), default=0) <= bound


def test_chunks_go_out_while_waiting_and_after_the_eyes() -> None:
    rig = Rig(GreedyPolicy(1), idles=3)
    rig.run(4)
    for calls in rig.frame_calls()[1:-1]:
        waiting = calls[: calls.index("before_frame")]
        assert waiting.count("submit chunk") == 3  # one per completion seen while idling
        assert calls[calls.index("end") :].count("submit chunk") <= 1


def test_while_waiting_chunks_go_out_a_few_at_a_time() -> None:
    rig = Rig(GreedyPolicy(7), idles=3)
    rig.run(4)
    for calls in rig.frame_calls()[1:-1]:
        waiting = calls[: calls.index("before_frame")]
        assert waiting.count("submit chunk") == 3 * IDLE_CHUNKS
        assert calls[calls.index("end") :].count("submit chunk") == 7 - IDLE_CHUNKS


def test_everything_is_told_and_logged_by_the_end() -> None:
    policy = LearningPolicy(2)
    rig = Rig(policy, chunks=3, delay=4)
    rig.run(10)
    assert rig.calls[-1] == "device idle"
    assert rig.tenant.in_flight == 0
    assert [row.id for row in rig.frames] == list(range(1, 11))
    assert list(rig.driver.completed) == list(range(1, 11))
    for row in rig.frames:
        assert row.gpu_done_ns == rig.driver.completed[row.id]
        assert None not in (row.begin_ns, row.end_ns, row.submit_ms, row.frame_ms)
        assert row.wait_ns <= row.begin_ns <= row.locate_ns <= row.submit_ns <= row.end_ns  # type: ignore[operator]
        assert row.missed == row.id % 2
    assert policy.outcomes == [(row.missed, row.cause == "chunk") for row in rig.frames]
    assert [row.id for row in rig.chunks] == list(range(1, len(rig.chunks) + 1))
    assert rig.job.runs * 3 == len(rig.chunks) > 0  # the run under way was finished
    assert max(row.in_flight for row in rig.chunks) == 2
    by_frame = Counter(row.frame_id for row in rig.chunks)
    assert {row.id: row.chunks_run for row in rig.frames if row.chunks_run} == by_frame
    by_id = {row.id: row for row in rig.chunks}
    for row in rig.frames:
        assert row.in_flight_at_submit in (0, 1, 2)
        assert row.behind_chunk is not None or row.in_flight_at_submit == 0
        assert row.submit_ns is not None and row.end_ns is not None
        if row.behind_chunk is not None:  # the newest chunk that went out before the eyes
            behind, after = (by_id.get(row.behind_chunk + n) for n in (0, 1))
            assert behind is not None and behind.submit_ns < row.submit_ns
            assert after is None or after.submit_ns >= row.end_ns
        assert row.withheld in ("in-flight bound", "frame quota used")
        own = [chunk.gpu_ms for chunk in rig.chunks if chunk.frame_id == row.id]
        assert row.chunk_gpu_ms == pytest.approx(sum(ms or 0.0 for ms in own))


def test_a_new_camera_image_is_uploaded_once_and_its_age_told() -> None:
    rig = Rig()
    rig.run(7)
    assert rig.scene.images == [1, 2, 3]
    ages = [row.camera_age_ms for row in rig.frames]
    assert ages[:2] == [None, None]  # an image that came with a frame is seen in the next one
    # The age of the image that is shown: it grows until the next one comes.
    for older, newer in ((3, 2), (5, 4)):
        assert ages[older] > ages[newer] >= 0  # type: ignore[operator]


def test_eye_time_is_learnt_from_frames_that_had_the_queue_to_themselves() -> None:
    rig = Rig(delay=1)
    rig.tenant.training = False
    rig.run(3)
    assert rig.tenant.eyes.ms > 0
    busy = Rig(GreedyPolicy(1), delay=50, idles=1)
    busy.tenant.frame_started(FrameTiming(0, 10**18, 10**10, True, 10**18), 0)
    busy.tenant.pump()
    busy.run(6)
    assert [row.in_flight_at_submit for row in busy.frames] == [1] * 6
    assert busy.tenant.eyes.ms == 0.0


# -- frames that nobody sees --


@pytest.mark.parametrize("stamps", [False, True])
def test_hidden_frames_are_begun_and_ended_but_not_drawn(stamps: bool) -> None:
    hidden = frozenset({2, 3, 6})
    policy = LearningPolicy(2)
    rig = Rig(policy, hidden=hidden, stamps=stamps)
    rig.run(7)
    seen = [number for number in range(1, 8) if number not in hidden]
    for number, calls in enumerate(rig.frame_calls(), start=1):
        drawn = [call for call in calls if call in ORDER]
        assert drawn == (["wait", "before_frame", "begin", "end"] if number in hidden else ORDER)
    assert list(rig.driver.completed) == seen
    assert [row.id for row in rig.frames] == list(range(1, 8))
    for row in rig.frames:
        known = (row.locate_ns, row.submit_ns, row.gpu_done_ns, row.missed, row.camera_age_ms)
        if row.id in hidden:
            assert known == (None,) * 5 and (row.cause, row.eye_ms) == ("", None)
        assert row.begin_ns is not None and row.end_ns is not None
    # Nobody missed a frame that nobody saw.
    assert [missed for missed, _ in policy.outcomes] == [number % 2 for number in seen]


REASONS = {"frame quota", "room in flight", "unknown cost: one a frame"}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_network_gets_the_whole_gpu_while_nothing_is_seen(policy: str) -> None:
    rig = Rig(make_policy(policy, 2), hidden=frozenset(range(3, 8)), idles=6)
    rig.tenant.learn_eye_time(10**9)  # never fits before any deadline
    rig.run(9)
    whole = [row for row in rig.chunks if row.reason == "whole GPU"]
    by_frame = Counter(row.frame_id for row in whole)
    # Whatever is in flight already, two more for each of the polls until the next frame.
    assert set(by_frame) == set(range(3, 8)) and by_frame[3] >= 12
    assert {by_frame[number] for number in range(4, 8)} == {12}
    visible = Counter(row.frame_id for row in rig.chunks if row.reason in REASONS)
    # A frame that is seen again has its policy's restraint at once.
    assert max(visible.values()) == {"fixed": 2, "greedy": 14, "deadline": 1}[policy]


# -- GPU stamps --


def test_stamps_reach_frames_chunks_and_the_scheduler() -> None:
    rig = Rig(LearningPolicy(2), stamps=True)
    rig.run(6)
    passes = rig.scene.stamps + rig.job.stamps
    assert sorted(entry["query"] for entry in passes) == [s.number for s in rig.timer.spans]
    eyes = {row.id: entry["query"] for row, entry in zip(rig.frames, rig.scene.stamps, strict=True)}
    chunks = {row.id: entry["query"] for row, entry in zip(rig.chunks, rig.job.stamps, strict=True)}
    for frame in rig.frames:
        number = eyes[frame.id]
        assert frame.eye_begin_ns == number * 1_000_000 + OFFSET_NS
        assert frame.eye_end_ns == number * 1_001_000 + OFFSET_NS
        assert frame.eye_ms == number / 1e3
        assert frame.frame_ms == (number * 1_001_000 + OFFSET_NS - frame.wait_ns) / 1e6
        # The compositor goes by when the GPU was done, not by when that was seen.
        assert rig.driver.completed[frame.id] == frame.eye_end_ns
        assert rig.driver.seen[frame.id] == frame.gpu_done_ns
        own = [row for row in rig.chunks if row.frame_id == frame.id]
        assert frame.chunk_gpu_ms == pytest.approx(sum(chunks[row.id] / 1e3 for row in own))
    for chunk in rig.chunks:
        assert (chunk.begin_ns, chunk.gpu_ms) == (
            chunks[chunk.id] * 1_000_000 + OFFSET_NS,
            chunks[chunk.id] / 1e3,
        )
    assert 0 < rig.tenant.eyes.ms <= max(eyes.values()) / 1e3
    assert rig.chunks[0].predicted_ms is None and rig.chunks[-1].predicted_ms is not None


@given(
    lost=st.frozensets(st.integers(1, 60)),
    refuse_every=st.sampled_from([0, 1, 2, 3]),
    delay=st.integers(1, 6),
    bound=st.integers(1, 3),
    drawn=st.integers(0, 3),
)
def test_lost_stamps_lose_no_row(
    lost: frozenset[int], refuse_every: int, delay: int, bound: int, drawn: int
) -> None:
    rig = Rig(
        GreedyPolicy(bound),
        delay=delay,
        stamps=True,
        lost=lost,
        refuse_every=refuse_every,
        viewers=(StubViewer(drawn),),
    )
    rig.run(8)
    assert [row.id for row in rig.frames] == list(range(1, 9))
    assert [row.id for row in rig.chunks] == list(range(1, len(rig.chunks) + 1))
    passes = rig.scene.stamps + rig.job.stamps
    rows: list[FrameRow | ChunkRow] = [*rig.frames, *rig.chunks]
    for row, entry in zip(rows, passes, strict=True):
        arrived = entry is not None and entry["query"] not in lost
        ended = row.eye_end_ns if isinstance(row, FrameRow) else row.end_ns
        assert (ended is not None) == arrived
    for frame in rig.frames:
        own = [row.gpu_ms for row in rig.chunks if row.frame_id == frame.id]
        assert (frame.chunk_gpu_ms is None) == (None in own)
    assert rig.job.runs * 3 == len(rig.chunks)


def test_without_a_clock_nothing_is_stamped() -> None:
    rig = Rig(stamps=False)
    rig.run(4)
    assert rig.timer.asked == 0 and set(rig.scene.stamps + rig.job.stamps) == {None}
    assert {row.eye_ms for row in rig.frames} == {None}


# -- headsets that need the images, and headsets that go away --


def test_a_presenter_rides_along_with_the_eyes() -> None:
    rig = Rig(delay=3)
    presenter = rig.driver.presenter = StubPresenter(rig.calls)
    rig.run(5)
    for calls in rig.frame_calls():
        at = calls.index("present")
        assert calls[at - 1 : at + 4] == ["encode", "present", "locate", "set_views", "submit eyes"]
    assert [rig.gpu.kinds[serial] for serial in presenter.serials] == ["eyes"] * 5
    assert [row.presenter_ms for row in rig.frames] == [n / 4 for n in range(1, 6)]


@pytest.mark.parametrize("stamps", [False, True])
def test_the_loop_goes_on_with_another_headset(stamps: bool) -> None:
    rig = Rig(LearningPolicy(2), chunks=5, delay=4, stamps=stamps)
    rig.timer.strict = False  # the frame that was lost gives its span up
    rig.driver.lost_at = 4
    with pytest.raises(XrLost):
        rig.run(99)
    first = rig.driver
    rig.loop.switch(StubDriver(rig.calls, 2, frozenset()))  # type: ignore[arg-type]
    assert [row.id for row in rig.frames] == [1, 2, 3, 4]
    assert rig.frames[-1].submit_ns is None and rig.frames[-1].missed is None
    rig.driver = rig.loop.driver  # type: ignore[assignment]
    rig.run(9)
    assert [row.id for row in rig.frames] == list(range(1, 10))
    assert sorted(first.completed) == [1, 2, 3]
    assert sorted(rig.driver.completed) == [1, 2, 3, 4, 5]
    assert [row.missed for row in rig.frames[4:]] == [1, 0, 1, 0, 1]
    # Training went on where it was: whole runs, rows without a gap.
    assert [row.id for row in rig.chunks] == list(range(1, len(rig.chunks) + 1))
    assert [row.index for row in rig.chunks] == [n % 5 for n in range(len(rig.chunks))]
    by_frame = Counter(row.frame_id for row in rig.chunks)
    assert {row.id: row.chunks_run for row in rig.frames if row.chunks_run} == by_frame


# -- what the policy learns --


def lessons(missed: list[int]) -> int:
    """Misses that come long enough after the last lesson to be one."""
    count, last = 0, -RESULT_DELAY_FRAMES
    for frame in missed:
        if frame - last > RESULT_DELAY_FRAMES:
            count, last = count + 1, frame
    return count


def test_a_policy_learns_only_from_misses_that_chunks_caused() -> None:
    policy = DeadlinePolicy(1)
    alone = Rig(policy)
    alone.tenant.training = False
    alone.run(8)  # every second frame is late, and no chunk is anywhere near
    assert [row.cause for row in alone.frames] == ["render", ""] * 4
    assert policy.margin_ms == pytest.approx(START_MARGIN_MS * MARGIN_DECAY**4)
    margins = [row.margin_ms for row in alone.frames]
    assert margins[0] == START_MARGIN_MS and margins == sorted(margins, reverse=True)  # type: ignore[type-var]

    crowded = Rig(DeadlinePolicy(1), delay=3, idles=1)
    crowded.run(24)
    blamed = [row.id for row in crowded.frames if row.cause == "chunk"]
    assert len(blamed) > 6
    assert crowded.policy.margin_ms == pytest.approx(
        START_MARGIN_MS * MARGIN_GROWTH ** lessons(blamed), rel=0.01
    )


@pytest.mark.parametrize("every", [(1, 1), (0, 2), (0, 0), (3, 1)])
def test_viewers_share_one_submission_when_they_draw(every: tuple[int, int]) -> None:
    viewers = StubViewer(every[0]), StubViewer(every[1])
    rig = Rig(viewers=viewers)
    rig.run(6)
    for viewer in viewers:
        assert viewer.asked == 8  # each frame, and twice at the end
        assert len(viewer.serials) == viewer.drawn
        assert all(rig.gpu.kinds[serial] == "mirror" for serial in viewer.serials)
        assert viewer.polls > 6
    drawn = set(viewers[0].serials) | set(viewers[1].serials)
    assert Counter(rig.gpu.kinds.values())["mirror"] == len(drawn)


def test_no_frames_at_all() -> None:
    rig = Rig()
    rig.run(0)
    assert rig.calls == ["device idle"] * 2 and rig.frames == []
