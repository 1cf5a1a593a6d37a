"""The frame loop: wait, begin, render, locate, submit, end; chunks of network work in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import wgpu

from app.camera.source import Frame
from app.scene.renderer import SceneRenderer
from app.telemetry.frame_log import FrameDraft, FrameLog
from app.telemetry.rows import ChunkRow, FrameRow
from app.telemetry.stamps import Stamps
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameTiming, View, XrDriver
from engine.gpu import Gpu

IDLE_CHUNKS = 2
"""Submitted at most at a time while waiting for a frame, which must not be found late."""


class Viewer(Protocol):
    """Someone who looks at the mirror: a window or a video file."""

    def draw(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """Record the mirror if a new picture is due; False when nothing was recorded."""

    def submitted(self, serial: int) -> None:
        """The recorded picture went out with this submission."""

    def poll(self) -> None:
        """Take readbacks that have arrived; cheap."""


class FrameLoop:
    """Runs both tenants of the queue, the renderer and the network, frame by frame.

    `camera` gives the newest image. `before_frame` runs at each frame's start (key presses),
    `before_render` when one is to be drawn, `after_submit` when the eyes are on their way (what
    can wait); `on_frame` and `on_chunk` get each finished row. `stamps` brings GPU times. All GPU
    work happens on the calling thread.
    """

    def __init__(
        self,
        gpu: Gpu,
        driver: XrDriver,
        scene: SceneRenderer,
        tenant: Tenant,
        camera: Callable[[], Frame | None],
        stamps: Stamps,
        *,
        viewers: Sequence[Viewer] = (),
        before_frame: Callable[[], None] = lambda: None,
        before_render: Callable[[FrameTiming], None] = lambda timing: None,
        after_submit: Callable[[], None] = lambda: None,
        on_frame: Callable[[FrameRow], None],
        on_chunk: Callable[[ChunkRow], None],
    ) -> None:
        self.gpu, self.driver, self.scene, self.tenant = gpu, driver, scene, tenant
        self.camera, self.stamps = camera, stamps
        # Stamps are one more thing that rides along with the mirror's submission.
        self.viewers: tuple[Viewer, ...] = (*viewers, stamps)
        self._before_frame, self._before_render = before_frame, before_render
        self._after_submit = after_submit
        self._on_frame, self._on_chunk = on_frame, on_chunk
        self.log = FrameLog(self._frame_known)
        self.frames = 0
        """Frames begun."""
        self.views: tuple[View, View] | None = None
        """The views of the latest rendered frame."""
        self._shown: Frame | None = None

    def run(self, running: Callable[[], bool]) -> None:
        """Loop while `running()`; may be called again. `finish` when all is over.

        What the driver raises, `XrLost` for one, leaves a loop that can go on: see `switch`.
        """
        while running():
            timing = self.driver.wait_frame(self.idle)
            frame = self.log.start(timing, time.perf_counter_ns())
            frame.margin_ms = self.tenant.policy.margin_ms
            self.frames += 1
            self.tenant.frame_started(timing, frame.id)
            self._before_frame()
            self.driver.begin_frame()
            frame.begin_ns = time.perf_counter_ns()
            if timing.should_render:
                self._render(frame, timing)
            self.driver.end_frame(timing.frame_id)
            frame.end_ns = time.perf_counter_ns()
            self._show_camera()
            self._mirror()
            self._pump()
            self._after_submit()

    def switch(self, driver: XrDriver) -> None:
        """Go on with another driver, or one opened anew; frames under way get no verdict."""
        self.flush()
        self._take_rows(all_of_them=True)
        self.log.finish()
        self.tenant.rest()
        self.driver = driver

    def _render(self, frame: FrameDraft, timing: FrameTiming) -> None:
        self._before_render(timing)
        encoder = self.gpu.device.create_command_encoder()
        span = self.stamps.span()
        self.scene.encode(encoder, span.writes if span else None)
        presenter = self.driver.presenter
        if presenter is not None:
            presenter.record(encoder, timing.frame_id)
        # Late latching: from here to the submission nothing but the views is written.
        frame.locate_ns = time.perf_counter_ns()
        self.views = self.driver.locate_views(timing.predicted_display_ns)
        self.scene.set_views(self.views)
        if self._shown is not None:
            frame.camera_age_ms = (frame.locate_ns - self._shown.captured_ns) / 1e6
        frame.in_flight_at_submit = self.tenant.in_flight
        frame.behind_chunk = self.log.chunk_ahead(self.tenant.newest_in_flight)
        frame.span = span.number if span else None
        frame.submit_ns = time.perf_counter_ns()
        frame.serial = self.gpu.submit(encoder)
        frame.submit_ms = (time.perf_counter_ns() - frame.submit_ns) / 1e6
        if span is not None:
            span.recorded()
        if presenter is not None:
            presenter.submitted(frame.serial)
        self.tenant.eyes_submitted(frame.serial, frame.submit_ns)

    def idle(self) -> None:
        """What is done while waiting for a frame: completions, readbacks, further chunks."""
        self.gpu.poll()
        self._take_completions()
        self._pump(IDLE_CHUNKS)  # first of all: the GPU may be waiting for work
        self._take_arrived()

    def flush(self) -> None:
        """Wait for the device and take everything that has arrived. Not for the frame loop."""
        self._mirror()
        self.gpu.wait()
        self._take_completions()
        self._take_arrived()

    def finish(self) -> None:
        """Finish the run under way; the device is idle then and every row has been given."""
        self.flush()
        self.tenant.finish_run(self.flush)
        self.log.count_chunks(self.tenant.chunks_this_frame, self.tenant.withheld)
        self.flush()  # the last stamps
        self._take_rows(all_of_them=True)
        self.log.finish()

    def _take_completions(self) -> None:
        """What has completed as of the last poll."""
        for serial, done_ns in self.gpu.take_completions():
            if not self.tenant.completed(serial, done_ns):
                self._eyes_completed(serial, done_ns)

    def _take_arrived(self) -> None:
        """Readbacks, stamps and verdicts, and the rows that are complete with them."""
        for viewer in self.viewers:
            viewer.poll()
        self._take_stamps()
        self.tenant.poll()
        self._take_rows()
        for presented in self.driver.presented():
            self.log.presented(presented.frame_id, presented.presenter_ms, presented.host_bytes)
        self.log.settle(self.driver.results())

    def _take_stamps(self) -> None:
        arrived = self.stamps.take()
        for number, begin_ns, end_ns in arrived:
            if self.tenant.stamped(number, begin_ns, end_ns):
                continue
            frame = self.log.stamped(number, begin_ns, end_ns)
            if frame is not None and frame.eye_ms is not None:
                self.tenant.learn_eye_time(frame.eye_ms)
                self.driver.frame_completed(frame.timing.frame_id, end_ns)
        if arrived:
            newest = arrived[-1][0]
            self.tenant.stamps_passed(newest)
            for frame in self.log.stamps_passed(newest):
                if frame.gpu_done_ns is not None:
                    self.driver.frame_completed(frame.timing.frame_id, frame.gpu_done_ns)

    def _eyes_completed(self, serial: int, done_ns: int) -> None:
        frame = self.log.completed(serial, done_ns)
        if frame is None or frame.submit_ns is None:
            return
        self.driver.frame_completed(frame.timing.frame_id, done_ns, exact=frame.span is None)
        if frame.span is None and frame.in_flight_at_submit == 0:
            # Without stamps, frames that had the queue to themselves give an upper bound.
            self.tenant.learn_eye_time((done_ns - frame.submit_ns) / 1e6)

    def _frame_known(self, row: FrameRow) -> None:
        if row.missed is not None:
            self.tenant.policy.frame_finished(row.missed, by_chunk=row.cause == "chunk")
        self._on_frame(row)

    def _take_rows(self, *, all_of_them: bool = False) -> None:
        for row in self.tenant.take_rows(all_of_them=all_of_them):
            self.log.chunk_known(row)
            self._on_chunk(row)

    def _pump(self, limit: int | None = None) -> None:
        self.tenant.pump(limit)
        self.log.count_chunks(self.tenant.chunks_this_frame, self.tenant.withheld)

    def _show_camera(self) -> None:
        """Upload the newest image for the next frame: this one's eyes must not wait for it."""
        newest = self.camera()
        if newest is not None and newest is not self._shown:
            self._shown = newest
            self.scene.set_camera(newest.image)

    def _mirror(self) -> None:
        encoder = self.gpu.device.create_command_encoder()
        drawn = [viewer for viewer in self.viewers if viewer.draw(encoder)]
        if drawn:
            serial = self.gpu.submit(encoder)
            for viewer in drawn:
                viewer.submitted(serial)
