import math
import threading

import numpy as np
import pytest
from pictures import GREEN, RED, close_to, solid

from app.camera import CameraError, CaptureThread, Frame
from app.camera.opencv import Webcam

# --- webcam, on a device that can die ---


class FakeDevice:
    """Stands for the driver: what every `open` finds."""

    def __init__(self) -> None:
        self.present = True
        self.opened = self.released = 0
        self.colour = RED

    def open(self, target: int | str) -> "FakeCapture":
        self.opened += self.present
        return FakeCapture(self)


class FakeCapture:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._open = device.present

    def isOpened(self) -> bool:  # noqa: N802
        return self._open

    def read(self) -> tuple[bool, np.ndarray]:
        alive = self._open and self._device.present
        return alive, solid(self._device.colour[::-1])

    def get(self, propId: int) -> float:
        return 0.0

    def set(self, propId: int, value: float) -> bool:
        return False

    def release(self) -> None:
        self._device.released += self._open
        self._open = False


def test_webcam_reopens_after_it_died() -> None:
    device = FakeDevice()
    webcam = Webcam(0, device.open)
    assert close_to(webcam.read(), RED, 0)
    device.present = False
    with pytest.raises(CameraError, match="webcam:0 stopped giving images"):
        webcam.read()
    with pytest.raises(CameraError, match="webcam:0 does not open"):
        webcam.read()
    device.present = True
    assert close_to(webcam.read(), RED, 0)
    webcam.close()
    webcam.close()
    assert device.opened == device.released == 2


# --- capture thread, stepped by hand on a simulated clock ---


class Stepper:
    """Clock and sleep for one thread: `step` lets it run from one sleep to the next."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.slept: list[float] = []
        self._asleep = threading.Semaphore(0)
        self._wake = threading.Semaphore(0)

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep.release()
        self._wake.acquire(timeout=20)
        self.now += round(seconds * 1e9)

    def settle(self) -> None:
        assert self._asleep.acquire(timeout=20)

    def step(self) -> None:
        self._wake.release()
        self.settle()

    def finish(self, thread: CaptureThread) -> None:
        closer = threading.Thread(target=thread.close)
        closer.start()
        thread._stop.wait(20)
        self._wake.release()
        closer.join()
        assert not thread._thread.is_alive()


class Counting:
    """A source whose k-th image has the level k; `script` may replace single reads."""

    name = "counting"
    fps = 20.0

    def __init__(self, script: dict[int, object] | None = None) -> None:
        self.reads = 0
        self.closed = 0
        self._script = script or {}

    def read(self) -> np.ndarray | None:
        k = self.reads
        self.reads += 1
        answer = self._script.get(k, k)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else np.full((30, 40, 3), k, np.uint8)

    def close(self) -> None:
        self.closed += 1


def newest(thread: CaptureThread) -> Frame:
    frame = thread.latest()
    assert frame is not None
    return frame


def test_capture_keeps_the_newest_frame_with_its_age() -> None:
    stepper, source = Stepper(), Counting()
    thread = CaptureThread(source, 16, stepper.clock, stepper.sleep)
    stepper.settle()
    first = thread.wait_first(5)
    assert (first.sequence, first.captured_ns) == (0, 1_000_000_000)
    for _ in range(3):
        stepper.step()
    frame = newest(thread)
    assert (frame.sequence, frame.captured_ns) == (3, 1_150_000_000)
    assert frame.image.shape == (16, 16, 3) and frame.image.dtype == np.uint8
    assert frame.image.flags.c_contiguous and (frame.image == 3).all()
    assert (first.image == 0).all()
    assert thread.age_ms(1_160_000_000) == pytest.approx(10.0)
    assert stepper.slept == pytest.approx([0.05] * 4)
    stepper.finish(thread)
    assert source.closed == 1


def test_capture_paces_by_due_time_and_does_not_catch_up() -> None:
    stepper, source = Stepper(), Counting()
    costs = iter([0, 20, 120, 0])  # milliseconds each read takes, of a period of 50
    read = source.read

    def slow_read() -> np.ndarray | None:
        stepper.now += next(costs) * 1_000_000
        return read()

    source.read = slow_read  # type: ignore[method-assign]
    thread = CaptureThread(source, 8, stepper.clock, stepper.sleep)
    stepper.settle()
    stepper.step()
    stepper.step()
    # The third read came back 70 ms too late: the fourth follows at once, then the pace is kept.
    assert stepper.slept == pytest.approx([0.05, 0.03, 0.05])
    assert newest(thread).sequence == 3
    stepper.finish(thread)


def test_dying_webcam_keeps_its_last_image_and_is_retried_every_second() -> None:
    stepper, device = Stepper(), FakeDevice()
    thread = CaptureThread(Webcam(0, device.open), 8, stepper.clock, stepper.sleep)
    stepper.settle()
    alive = newest(thread)
    device.present = False
    stepper.step()
    assert thread.error is not None and "stopped giving images" in thread.error
    for _ in range(3):
        stepper.step()
        assert thread.error is not None and "does not open" in thread.error
        assert thread.latest() is alive
    assert stepper.slept[1:] == [1.0] * 4
    assert thread.age_ms(stepper.now) > 3000
    assert thread.wait_first(0) is alive
    device.present, device.colour = True, GREEN
    stepper.step()
    assert thread.error is None
    assert newest(thread).sequence == 1 and close_to(newest(thread).image, GREEN, 0)
    stepper.finish(thread)
    assert device.opened == device.released == 2


def test_capture_survives_an_unforeseen_error() -> None:
    stepper = Stepper()
    source = Counting({1: ValueError("odd\nsecond line")})
    thread = CaptureThread(source, 8, stepper.clock, stepper.sleep)
    stepper.settle()
    stepper.step()
    assert thread.error == "counting failed: odd"
    stepper.step()
    assert thread.error is None and newest(thread).sequence == 1
    stepper.finish(thread)


def test_capture_of_a_source_that_ends_keeps_the_last_image() -> None:
    source = Counting({2: None})
    with CaptureThread(source, 8, sleep=lambda seconds: None) as thread:
        thread._thread.join(20)
        assert thread.error == "counting has ended"
        assert newest(thread).sequence == 1 and (newest(thread).image == 1).all()
    assert source.closed == 1


def test_wait_first_reports_failure_and_timeout() -> None:
    with CaptureThread(Counting({0: CameraError("broken: do this")}), 8) as thread:
        with pytest.raises(CameraError, match="broken: do this"):
            thread.wait_first(20)
        assert thread.latest() is None and thread.age_ms(0) == math.inf

    release = threading.Event()
    stuck = Counting()
    stuck.read = lambda: release.wait(20) and None  # type: ignore[method-assign]
    with CaptureThread(stuck, 8) as thread:
        with pytest.raises(CameraError, match=r"counting gave no image within 0.01 s"):
            thread.wait_first(0.01)
        release.set()


def test_close_gives_up_on_a_stuck_read_and_releases_the_device_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.camera.capture.JOIN_SECONDS", 0.01)
    release = threading.Event()
    source = Counting()
    source.read = lambda: release.wait(20) and None  # type: ignore[method-assign]
    thread = CaptureThread(source, 8)
    thread.close()
    assert source.closed == 0
    release.set()
    thread._thread.join(20)
    thread.close()
    assert source.closed == 1
