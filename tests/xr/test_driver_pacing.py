"""The openxr driver's order of calls against a runtime that is only a script."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from app.xr.driver import Fov, FrameTiming, Pose, View, XrEnded, XrError, XrLost
from app.xr.openxr import driver as module
from app.xr.openxr.driver import OpenXrDriver
from app.xr.openxr.frames import Waited
from app.xr.openxr.session_life import SessionLife, State

PERIOD = 10_000_000
VIEW = View(Pose((0, 1.6, 0), (0, 0, 0, 1)), Fov(-0.7, 0.7, 0.7, -0.7))


@dataclass
class Waiter:
    """Answers each request with the next script entry, after `polls` looks."""

    script: list[Waited | Exception]
    calls: list[Any]
    polls: int = 3
    pending: bool = False
    looks: int = 0

    def request(self) -> None:
        if not self.pending:
            self.calls.append("wait")
            self.pending, self.looks = True, 0

    def answer(self, timeout_s: float) -> Waited | None:
        time.sleep(timeout_s)
        self.looks += 1
        if self.looks < self.polls:
            return None
        self.pending = False
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> bool:
        return True


@dataclass
class Runtime:
    """What `Headset` offers the driver, and a list of the calls it made."""

    script: list[Waited | Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.calls: list[Any] = []
        life = SessionLife()
        for state in (State.IDLE, State.READY, State.FOCUSED):
            life.changed(state)
        self.session = SimpleNamespace(life=life, poll=lambda: None, masks_changed=True)
        self.frames = SimpleNamespace(
            waiter=Waiter(self.script, self.calls),
            begin=lambda: self.calls.append("begin"),
            end=lambda at, image: self.calls.append(("end", at, image and image.space)),
        )
        clock = SimpleNamespace(to_ns=lambda t: t, to_xr=lambda ns: ns)
        self.wearer = SimpleNamespace(clock=clock, space="floor", views=lambda ns: (VIEW, VIEW))
        self.view_size = (64, 48)

    def close(self) -> None:
        self.calls.append("close")

    def frame(self, in_ns: int, should_render: bool = True) -> int:
        """Script a frame to be displayed so far from now."""
        at = time.perf_counter_ns() + in_ns
        self.script.append(Waited(at, PERIOD, should_render))
        return at


class Images:
    """A presenter whose images arrive when the test says so."""

    name = note = "test"
    cost_ns = 1_000_000
    host_bytes = 0

    def __init__(self) -> None:
        self.arrived = 0

    def ready(self, frame_id: int) -> bool:
        return self.arrived >= frame_id

    def present(self) -> int:
        return self.arrived

    def close(self) -> None:
        self.arrived = 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    scripted = Runtime()
    monkeypatch.setattr(module, "Headset", lambda **options: scripted)
    return scripted


@pytest.fixture
def images() -> Images:
    return Images()


@pytest.fixture
def driver(runtime: Runtime, images: Images) -> OpenXrDriver:
    driver = OpenXrDriver()
    driver.open()
    driver.present_with(images)  # type: ignore[arg-type]
    return driver


def render(driver: OpenXrDriver, timing: FrameTiming) -> None:
    driver.begin_frame()
    driver.locate_views(timing.predicted_display_ns)
    driver.end_frame(timing.frame_id)


def test_frame_ends_when_its_image_is_there(
    driver: OpenXrDriver, runtime: Runtime, images: Images
) -> None:
    first_at, _ = runtime.frame(10**10), runtime.frame(2 * 10**10)
    timing = driver.wait_frame(lambda: None)
    assert timing.predicted_display_ns == first_at
    assert timing.due_ns == first_at - module.COMPOSITOR_LEAD_NS - images.cost_ns
    render(driver, timing)
    assert runtime.calls == ["wait", "begin"]
    looks = []

    def idle() -> None:
        looks.append(list(runtime.calls))
        images.arrived = 1 if len(looks) == 2 else images.arrived

    runtime.frames.waiter.polls = 10
    driver.wait_frame(idle)
    assert runtime.calls == ["wait", "begin", "wait", ("end", first_at, "floor")]
    assert len(looks[-1]) == 4 and len(looks) > 5, "ended while the next frame was waited for"


def test_frame_ends_with_the_image_before_once_the_next_may_start(
    driver: OpenXrDriver, runtime: Runtime, images: Images
) -> None:
    ats = [runtime.frame(10**10 * n) for n in (1, 2, 3)]
    for arrived in (1, 1):
        timing = driver.wait_frame(lambda: None)
        render(driver, timing)
        images.arrived = arrived
    driver.wait_frame(lambda: None)
    ended = [call for call in runtime.calls if call[0] == "end"]
    assert ended == [("end", ats[0], "floor"), ("end", ats[1], "floor")]
    assert [(p.frame_id, p.image_id, p.image_age) for p in driver.presented()] == [
        (1, 1, 0),
        (2, 1, 1),
    ]
    assert driver.presented() == []


@pytest.mark.parametrize("patience_ms", [0.0, None])
def test_frame_is_not_held_beyond_its_patience_or_due_time(
    runtime: Runtime, images: Images, patience_ms: float | None
) -> None:
    driver = OpenXrDriver(patience_ms=patience_ms)
    driver.open()
    driver.present_with(images)  # type: ignore[arg-type]
    # Without patience long before it is due, else as soon as it is: here at once.
    runtime.frame(10**10 if patience_ms == 0.0 else 0)
    runtime.frame(2 * 10**10)
    render(driver, driver.wait_frame(lambda: None))
    looks: list[int] = []
    runtime.frames.waiter.polls = 10
    driver.wait_frame(lambda: looks.append(len(runtime.calls)))
    assert looks[2] == 4, "ended at the first look"


def test_unusable_times_are_counted_and_skipped(driver: OpenXrDriver, runtime: Runtime) -> None:
    runtime.script += [Waited(0, PERIOD, True), Waited(-5, PERIOD, True)]
    at = runtime.frame(10**10)
    timing = driver.wait_frame(lambda: None)
    assert timing.predicted_display_ns == at and timing.frame_id == 1
    assert driver.invalid_times == 2
    assert runtime.calls == ["wait", "begin", "wait", "begin", "wait"]


def test_only_unusable_times_are_an_error(
    driver: OpenXrDriver, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_INVALID", 5)
    runtime.script += [Waited(-1, PERIOD, True)] * 5
    with pytest.raises(XrError, match="5 times in a row"):
        driver.wait_frame(lambda: None)


def test_a_period_of_nothing_is_the_one_before(driver: OpenXrDriver, runtime: Runtime) -> None:
    runtime.frame(10**10)
    runtime.script.append(Waited(2 * 10**15, 0, True))
    for _ in range(2):
        timing = driver.wait_frame(lambda: None)
        assert timing.period_ns == PERIOD
        driver.begin_frame()


def test_hidden_frames_show_nothing(driver: OpenXrDriver, runtime: Runtime, images: Images) -> None:
    images.arrived = 7
    at = runtime.frame(10**10, should_render=False)
    runtime.frame(2 * 10**10)
    timing = driver.wait_frame(lambda: None)
    assert not timing.should_render
    driver.begin_frame()
    driver.end_frame(timing.frame_id)
    driver.wait_frame(lambda: None)
    assert ("end", at, None) in runtime.calls
    assert driver.results() == [] and driver.presented() == []


def test_a_frame_never_begun_is_begun_and_ended(driver: OpenXrDriver, runtime: Runtime) -> None:
    at, _ = runtime.frame(10**10), runtime.frame(2 * 10**10)
    driver.wait_frame(lambda: None)
    driver.wait_frame(lambda: None)
    assert runtime.calls == ["wait", "begin", ("end", at, None), "wait"]


def test_session_that_does_not_run_lets_time_pass(driver: OpenXrDriver, runtime: Runtime) -> None:
    runtime.frame(10**10)
    render(driver, driver.wait_frame(lambda: None))
    runtime.session.life.changed(State.STOPPING)
    idles: list[None] = []
    for frame_id in (2, 3):
        timing = driver.wait_frame(lambda: idles.append(None))
        assert not timing.should_render and timing.frame_id == frame_id
        render(driver, timing)
    assert len(idles) > 4
    assert runtime.calls == ["wait", "begin"], "nothing is ended after xrEndSession"
    assert [(r.frame_id, r.dropped) for r in driver.results()] == [(1, True)]
    runtime.session.life.changed(State.READY)
    runtime.frame(10**10)
    assert driver.wait_frame(lambda: None).should_render


@pytest.mark.parametrize("error", [XrLost("gone"), XrEnded("over")])
def test_what_the_session_says_comes_out(
    driver: OpenXrDriver, runtime: Runtime, error: XrError
) -> None:
    def poll() -> None:
        raise error

    runtime.session.poll = poll
    with pytest.raises(type(error)):
        driver.wait_frame(lambda: None)
    driver.close()
    assert runtime.calls == ["close"]


def test_a_runtime_that_never_answers(
    driver: OpenXrDriver, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_LIMIT_S", 0.01)
    runtime.frames.waiter.polls = 10**9
    with pytest.raises(XrError, match="has not answered"):
        driver.wait_frame(lambda: None)


def test_an_error_of_the_thread_comes_out(driver: OpenXrDriver, runtime: Runtime) -> None:
    runtime.script.append(XrLost("gone"))
    with pytest.raises(XrLost, match="gone"):
        driver.wait_frame(lambda: None)


def test_an_error_of_idle_leaves_the_wait_pending(driver: OpenXrDriver, runtime: Runtime) -> None:
    at = runtime.frame(10**10)

    def fail() -> None:
        if runtime.calls:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.wait_frame(fail)
    assert driver.wait_frame(lambda: None).predicted_display_ns == at
    assert runtime.calls == ["wait"]


def test_wrong_order(driver: OpenXrDriver, runtime: Runtime) -> None:
    with pytest.raises(RuntimeError, match="without wait_frame"):
        driver.begin_frame()
    runtime.frame(10**10)
    timing = driver.wait_frame(lambda: None)
    with pytest.raises(RuntimeError, match="has not begun"):
        driver.end_frame(timing.frame_id)
    driver.begin_frame()
    with pytest.raises(RuntimeError, match="has not begun"):
        driver.end_frame(timing.frame_id + 1)
    driver.close()
    driver.close()
    assert runtime.calls[-2:] == [("end", timing.predicted_display_ns, None), "close"]
    for call in (lambda: driver.wait_frame(lambda: None), lambda: driver.locate_views(1)):
        with pytest.raises(RuntimeError, match="call open"):
            call()
