"""The frame loop: wait, begin, render, locate, submit, end; chunks of network work in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import wgpu

from app.camera.capture import CaptureThread
from app.camera.source import Frame
from app.scene.renderer import SceneRenderer
from app.telemetry.frame_log import FrameLog
from app.telemetry.rows import ChunkRow
from app.tenancy.tenant import SMOOTHING, Tenant
from app.xr.driver import XrDriver
from engine.gpu import Gpu


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

    `before_frame` runs at each frame's start (key presses), `after_submit` when the eyes are on
    their way (what can wait); `on_chunk` gets each finished chunk's row. All GPU work happens on
    the calling thread.
    """

    def __init__(
        self,
        gpu: Gpu,
        driver: XrDriver,
        scene: SceneRenderer,
        tenant: Tenant,
        camera: CaptureThread,
        log: FrameLog,
        *,
        viewers: Sequence[Viewer],
        before_frame: Callable[[], None],
        after_submit: Callable[[], None],
        on_chunk: Callable[[ChunkRow], None],
    ) -> None:
        self.gpu, self.driver, self.scene, self.tenant = gpu, driver, scene, tenant
        self.camera, self.log, self.viewers = camera, log, viewers
        self._before_frame, self._after_submit = before_frame, after_submit
        self._on_chunk = on_chunk
        self.frames = 0
        """Frames begun."""
        self._shown: Frame | None = None

    def run(self, running: Callable[[], bool]) -> None:
        """Loop while `running()`, then finish the run under way.

        Returns with the device idle and the log complete.
        """
        while running():
            timing = self.driver.wait_frame(self.idle)
            frame = self.log.start(timing, time.perf_counter_ns())
            self.frames += 1
            self.tenant.frame_started(timing)
            self._before_frame()
            self._show_camera()
            self.driver.begin_frame()
            frame.begin_ns = time.perf_counter_ns()
            encoder = self.gpu.device.create_command_encoder()
            self.scene.encode(encoder)
            # Late latching: from here to the submission nothing but the views is written.
            frame.locate_ns = time.perf_counter_ns()
            self.scene.set_views(self.driver.locate_views(timing.predicted_display_ns))
            if self._shown is not None:
                frame.camera_age_ms = (frame.locate_ns - self._shown.captured_ns) / 1e6
            frame.in_flight_at_submit = self.tenant.in_flight
            frame.submit_ns = time.perf_counter_ns()
            frame.serial = self.gpu.submit(encoder)
            frame.submit_ms = (time.perf_counter_ns() - frame.submit_ns) / 1e6
            self.driver.end_frame(timing.frame_id)
            frame.end_ns = time.perf_counter_ns()
            self._mirror()
            self._pump()
            self._after_submit()
        self.flush()
        self.tenant.finish_run(self.flush)
        self.log.count_chunks(self.tenant.chunks_this_frame)
        self.log.finish()

    def idle(self) -> None:
        """What is done while waiting for a frame: completions, readbacks, further chunks."""
        self.gpu.poll()
        self._take_arrived()
        self._pump()

    def flush(self) -> None:
        """Wait for the device and take everything that has arrived. Not for the frame loop."""
        self._mirror()
        self.gpu.wait()
        self._take_arrived()

    def _take_arrived(self) -> None:
        """Completions and readbacks, as of the last poll."""
        self._collect()
        self.tenant.poll()
        for viewer in self.viewers:
            viewer.poll()

    def _pump(self) -> None:
        self.tenant.pump(after_submit=True)
        self.log.count_chunks(self.tenant.chunks_this_frame)

    def _collect(self) -> None:
        for serial, done_ns in self.gpu.take_completions():
            row = self.tenant.collect(serial, done_ns)
            if row is not None:
                self._on_chunk(row)
                continue
            frame = self.log.completed(serial, done_ns)
            if frame is not None and frame.submit_ns is not None:
                self.driver.frame_completed(frame.timing.frame_id, done_ns)
                if frame.in_flight_at_submit == 0:
                    self._learn_eye_time((done_ns - frame.submit_ns) / 1e6)
        results = self.driver.results()
        for result in results:
            self.tenant.policy.frame_finished(result.missed)
        self.log.settle(results)

    def _learn_eye_time(self, ms: float) -> None:
        """An upper bound of the eyes' GPU time, from frames that had the queue to themselves."""
        known = self.tenant.eye_ms
        self.tenant.eye_ms += (ms - known) * (SMOOTHING if known else 1.0)

    def _show_camera(self) -> None:
        newest = self.camera.latest()
        if newest is not None and newest is not self._shown:
            self._shown = newest
            self.scene.set_camera(newest.image)

    def _mirror(self) -> None:
        encoder = None
        drawn = []
        for viewer in self.viewers:
            encoder = encoder or self.gpu.device.create_command_encoder()
            if viewer.draw(encoder):
                drawn.append(viewer)
        if encoder is not None and drawn:
            serial = self.gpu.submit(encoder)
            for viewer in drawn:
                viewer.submitted(serial)
