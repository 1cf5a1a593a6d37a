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
from app.loop import FrameLoop
from app.telemetry.frame_log import FrameLog
from app.telemetry.rows import ChunkRow, FrameRow
from app.tenancy.policy import FixedPolicy, GreedyPolicy, Policy
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameResult, FrameTiming


class StubGpu:
    """A device whose encoders are lists; work completes at the `delay`-th poll after it."""

    def __init__(self, calls: list[str], delay: int = 1) -> None:
        self.calls, self.delay = calls, delay
        self.device = SimpleNamespace(create_command_encoder=list)
        self.serial = 0
        self.kinds: dict[int, str] = {}
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
            self._done.append((self._busy.popleft()[0], time.perf_counter_ns()))

    def wait(self) -> None:
        self.calls.append("device idle")
        while self._busy:
            self.poll()

    def take_completions(self) -> list[tuple[int, int]]:
        done, self._done = self._done, []
        return done


class StubDriver:
    """Idles `idles` times per wait; every second completed frame was a refresh late."""

    name, view_size = "stub", (8, 8)

    def __init__(self, calls: list[str], idles: int) -> None:
        self.calls, self.idles = calls, idles
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
        return FrameTiming(self.frame_id, 10**18 + self.frame_id, 10**10, True)

    def begin_frame(self) -> None:
        self.calls.append("begin")

    def locate_views(self, display_ns: int) -> Any:
        assert display_ns == 10**18 + self.frame_id
        self.calls.append("locate")
        return ("left", "right")

    def end_frame(self, frame_id: int) -> None:
        assert frame_id == self.frame_id
        self.calls.append("end")

    def frame_completed(self, frame_id: int, completed_ns: int) -> None:
        self.completed[frame_id] = completed_ns
        self._results.append(FrameResult(frame_id, completed_ns, frame_id % 2, frame_id % 2))

    def results(self) -> list[FrameResult]:
        results, self._results = self._results, []
        return results


class StubScene:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.images: list[int] = []

    def encode(self, encoder: list[str]) -> None:
        self.calls.append("encode")
        encoder.append("eyes")

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

    def cut(self, chunks: int) -> None:
        self.chunks = [(n, n + 1) for n in range(chunks)]

    def due(self, now_ns: int) -> bool:
        return True

    def begin(self) -> None:
        self.calls.append("feed")

    def encode(self, encoder: list[str], index: int) -> None:
        encoder.append("chunk")

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
        self.outcomes: list[int] = []

    def frame_finished(self, missed: int) -> None:
        self.outcomes.append(missed)


class Rig:
    def __init__(
        self,
        policy: Policy | None = None,
        *,
        chunks: int = 3,
        idles: int = 2,
        delay: int = 1,
        viewers: tuple[StubViewer, ...] = (),
    ) -> None:
        self.calls: list[str] = []
        self.gpu = StubGpu(self.calls, delay)
        self.driver = StubDriver(self.calls, idles)
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
        )
        self.frames: list[FrameRow] = []
        self.chunks: list[ChunkRow] = []
        self.loop = FrameLoop(
            self.gpu,  # type: ignore[arg-type]
            self.driver,
            self.scene,  # type: ignore[arg-type]
            self.tenant,
            self.camera,  # type: ignore[arg-type]
            FrameLog(self.frames.append),
            viewers=viewers,
            before_frame=lambda: self.calls.append("before_frame"),
            after_submit=lambda: self.calls.append("after_submit"),
            on_chunk=self.chunks.append,
        )

    def run(self, frames: int) -> None:
        self.loop.run(lambda: self.loop.frames < frames)

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
    greedy=st.booleans(),
)
def test_the_order_of_a_frame(
    chunks: int, bound: int, idles: int, delay: int, greedy: bool
) -> None:
    policy = GreedyPolicy(bound) if greedy else FixedPolicy(bound)
    rig = Rig(policy, chunks=chunks, idles=idles, delay=delay, viewers=(StubViewer(1),))
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
        assert set(started) <= {"before_frame", "set_camera", "begin", "encode"}
        after = calls[calls.index("end") + 1 :]
        assert after[0] == "submit mirror" and "after_submit" in after
    assert rig.gpu.kinds[rig.gpu.serial] != "eyes"
    assert Counter(rig.calls)["submit chunk"] == len(rig.chunks)


def test_chunks_go_out_while_waiting_and_after_the_eyes() -> None:
    rig = Rig(GreedyPolicy(1), idles=3)
    rig.run(4)
    for calls in rig.frame_calls()[1:-1]:
        waiting = calls[: calls.index("before_frame")]
        assert waiting.count("submit chunk") == 3  # one per completion seen while idling
        assert calls[calls.index("end") :].count("submit chunk") <= 1


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
    assert policy.outcomes == [n % 2 for n in range(1, 11)]
    assert [row.id for row in rig.chunks] == list(range(1, len(rig.chunks) + 1))
    assert rig.job.runs * 3 == len(rig.chunks) > 0  # the run under way was finished
    assert max(row.in_flight for row in rig.chunks) == 2
    by_frame = Counter(row.frame_id for row in rig.chunks)
    assert {row.id: row.chunks_run for row in rig.frames if row.chunks_run} == by_frame
    assert all(0 <= (row.in_flight_at_submit or 0) <= 2 for row in rig.frames)


def test_a_new_camera_image_is_uploaded_once_and_its_age_told() -> None:
    rig = Rig()
    rig.run(7)
    assert rig.scene.images == [1, 2, 3]
    ages = [row.camera_age_ms for row in rig.frames]
    assert ages[0] is None
    # The age of the image that is shown: it grows until the next one comes.
    for older, newer in ((2, 1), (4, 3), (6, 5)):
        assert ages[older] > ages[newer] >= 0  # type: ignore[operator]


def test_eye_time_is_learnt_from_frames_that_had_the_queue_to_themselves() -> None:
    rig = Rig(delay=1)
    rig.tenant.training = False
    rig.run(3)
    assert rig.tenant.eye_ms > 0
    busy = Rig(GreedyPolicy(1), delay=50, idles=1)
    busy.tenant.frame_started(FrameTiming(0, 10**18, 10**10, True))
    busy.tenant.pump(after_submit=True)
    busy.run(6)
    assert [row.in_flight_at_submit for row in busy.frames] == [1] * 6
    assert busy.tenant.eye_ms == 0.0


@pytest.mark.parametrize("every", [(1, 1), (0, 2), (0, 0), (3, 1)])
def test_viewers_share_one_submission_when_they_draw(every: tuple[int, int]) -> None:
    viewers = StubViewer(every[0]), StubViewer(every[1])
    rig = Rig(viewers=viewers)
    rig.run(6)
    for viewer in viewers:
        assert viewer.asked == 7  # each frame, and once at the end
        assert len(viewer.serials) == viewer.drawn
        assert all(rig.gpu.kinds[serial] == "mirror" for serial in viewer.serials)
        assert viewer.polls > 6
    drawn = set(viewers[0].serials) | set(viewers[1].serials)
    assert Counter(rig.gpu.kinds.values())["mirror"] == len(drawn)


def test_no_frames_at_all() -> None:
    rig = Rig()
    rig.loop.run(lambda: False)
    assert rig.calls == ["device idle"] and rig.frames == []
