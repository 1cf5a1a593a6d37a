"""A session that someone watches, in a window or a headset: wires everything to the frame loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from app.camera import held_out
from app.config import LiveConfig
from app.interrupt import Interrupt
from app.loop import FrameLoop, Viewer
from app.preview.actions import Kind, help_lines
from app.preview.controls import Controls
from app.preview.dashboard import Dashboard
from app.preview.handling import Handling
from app.preview.hud_painter import HudPainter
from app.preview.reconnect import run_with_headset
from app.preview.records import Records
from app.preview.saving import CheckpointSaver
from app.preview.viewers import VideoViewer, WindowViewer
from app.preview.window import PreviewWindow
from app.progress import Progress
from app.punctual import collect_young, punctual_python
from app.rig import Rig
from app.scene.hud import HudState, render_hud
from app.scene.mirror import Mirror
from app.telemetry.rows import ChunkRow, FrameRow
from app.telemetry.statistics import Statistics
from app.telemetry.summary import Summary
from app.tenancy.nan_watch import NanWatch
from app.xr.driver import XrDriver, XrEnded
from engine.errors import first_line

SLOW_EVALUATION_S = 2.0
"""After Ctrl-C an evaluation that takes longer than this is left out."""

CHECKPOINT = Path("runs/decoder.safetensors")
"""Where S saves when neither --save nor --out says otherwise."""

log = logging.getLogger(__name__)


class LiveSession:
    """One session, and a context manager that releases all it holds.

    Raises UsageError, CameraError, CheckpointError, GpuError, XrError, PreviewError or
    TelemetryError before anything is written.
    """

    def __init__(
        self,
        config: LiveConfig,
        progress: Progress,
        *,
        command: str,
        driver: XrDriver,
        window: bool,
        wait_s: float = 0.0,
    ) -> None:
        """`command`: its name, for the records. `driver`: not opened yet, closed at the end.

        `window`: whether to show what the wearer sees. `wait_s`: how long to wait for a runtime
        that went away.
        """
        config.check()
        self.config, self.progress, self.driver = config, progress, driver
        self._command, self._window_wanted, self._wait_s = command, window, wait_s
        self._psnr: tuple[float | None, float | None] = (None, None)
        self._created = 0
        self._diverged_said = False
        with ExitStack() as owned:
            self._open(owned)
            self._owned = owned.pop_all()

    def __enter__(self) -> LiveSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def _open(self, owned: ExitStack) -> None:
        """Open everything, what is most likely to fail first; the records last."""
        config = self.config
        self.rig = Rig(config, self.progress, owned)
        self.gpu, self.camera = self.rig.gpu, self.rig.camera
        self.driver.open()
        owned.callback(self.driver.close)
        self.window: PreviewWindow | None = None
        if self._window_wanted:
            self.window = PreviewWindow(self.gpu)
            owned.callback(self.window.close)
        self.rig.build(self.driver.view_size, 1e3 / config.hz)
        self.network, self.scene = self.rig.network, self.rig.scene
        self.driver.show(self.gpu, self.scene.eyes)
        self._clock = self.rig.clock()
        self.stamps = self.rig.stamps(self._clock)
        self.handling = Handling(self.scene)
        self._open_viewers()
        self._open_tenant(owned)
        description = {
            "command": self._command,
            "options": asdict(config),
            **self.rig.provenance(),
        }
        self.records = Records(config.out_dir, description, self.video, self._summary, self._clock)

    def _open_viewers(self) -> None:
        device = self.gpu.device
        self.video = VideoViewer(self.gpu, self.scene.eyes_view)
        self.viewers: list[Viewer] = [self.video]
        self.mirror: Mirror | None = None
        if self.window is not None:
            self.mirror = Mirror(device, self.scene.eyes_view, self.window.format)
            self.viewers.append(WindowViewer(self.window, self.mirror))

    def _open_tenant(self, owned: ExitStack) -> None:
        config = self.config
        self.watch = NanWatch(self.network) if config.debug_nan else None
        self.tenant, self.train, self.infer = self.rig.tenant(
            self.stamps,
            policy=config.policy,
            in_flight=config.in_flight,
            chunks=config.chunks,
            mode=config.job,
            owned=owned,
            watch=self.watch,
        )
        self.dashboard = Dashboard()
        self.hud = HudPainter()
        owned.callback(self.hud.close)
        self.controls = Controls(self.tenant, self.scene, self.mirror, self.dashboard)
        self.saver = CheckpointSaver(self.network, self.tenant, self.dashboard.say)
        owned.callback(self.saver.close)
        self.viewers.append(self.saver)

    def run(self) -> dict[str, object]:
        """Warm up, loop, evaluate, write the records; the summary."""
        outcome = "error: the session did not start"
        try:
            with Interrupt() as interrupt:
                outcome = self._run(interrupt)
        except BaseException as error:
            outcome = f"error: {first_line(error)}"
            raise
        finally:
            self.driver.close()
            summary = self.records.finish(outcome)
        return summary

    def _run(self, interrupt: Interrupt) -> str:
        evaluation_s = self._warm_up()
        loop = FrameLoop(
            self.gpu,
            self.driver,
            self.scene,
            self.tenant,
            self.camera.latest,
            self.stamps,
            viewers=self.viewers,
            before_frame=lambda: self._before_frame(loop.driver),
            before_render=lambda timing: self.handling.update(loop.driver, timing, loop.views),
            after_submit=self._after_submit,
            on_frame=self._on_frame,
            on_chunk=self._on_chunk,
        )
        with punctual_python():
            self._loop(loop, self._running(loop, interrupt))
        self.progress.close()
        self._clock = self.records.clock = self.rig.recalibrated(self._clock)
        self.records.screenshot(self.rig.picture())
        self._finish_saving(loop)
        if not interrupt.requested or evaluation_s < SLOW_EVALUATION_S:
            self._psnr = (self._psnr[0], self._evaluate("after"))
        return "interrupted" if interrupt.requested else "ok"

    def _loop(self, loop: FrameLoop, running: Callable[[], bool]) -> None:
        before = self.gpu.objects_created
        try:
            run_with_headset(loop, running, wait_s=self._wait_s, say=self._say)
        except XrEnded as ended:
            self._say(str(ended))
        loop.finish()
        self._created = self.gpu.objects_created - before

    def _say(self, text: str) -> None:
        """To the terminal and the HUD."""
        self.progress.say(text)
        self.dashboard.say(text)

    def _warm_up(self) -> float:
        """Use everything once; returns what the first evaluation took, in seconds."""
        started = time.perf_counter()
        self._psnr = (self._evaluate("before"), None)
        elapsed = time.perf_counter() - started
        self.scene.set_hud(render_hud(self._hud_state()))
        self.rig.warm_up_scene(self.driver)
        encoder = self.gpu.device.create_command_encoder()
        self.video.encode(encoder)
        self.gpu.submit(encoder)
        self.gpu.wait()
        self.gpu.take_completions()
        return elapsed

    def _running(self, loop: FrameLoop, interrupt: Interrupt) -> Callable[[], bool]:
        started = time.perf_counter()
        seconds, frames = self.config.run_seconds, self.config.frames

        def running() -> bool:
            elapsed = time.perf_counter() - started
            self.progress.update(lambda: self._progress_line(elapsed))
            over = seconds is not None and elapsed >= seconds
            over = over or (frames is not None and loop.frames >= frames)
            return not (over or self.controls.quit or interrupt.requested)

        return running

    # Called by the loop

    def _before_frame(self, driver: XrDriver) -> None:
        if self.window is not None:
            for action in self.window.actions():
                self.controls.apply(action)
        for action in driver.actions(self.tenant.chunks):
            self.controls.apply(action)
        if self.controls.take(Kind.SAVE):
            self.saver.request(self._checkpoint_path())
        if self.controls.take(Kind.RESET_VIEW):
            self.handling.reset()
        if self.controls.take(Kind.RECORD):
            self.dashboard.say(self.records.toggle())
        if self.train.diverged and not self._diverged_said:
            self._diverged_said = True
            cause = f": {self.watch.find()}" if self.watch is not None else ""
            step = self.network.step
            log.warning("the loss is not finite: training stopped at step %d%s", step, cause)
            self.dashboard.say("the loss is not finite: training stopped")

    def _after_submit(self) -> None:
        picture = self.hud.take()
        if picture is not None:
            self.scene.set_hud(picture)
        if not self.hud.busy and self.dashboard.due(time.perf_counter_ns()):
            self.hud.paint(self._hud_state())
        collect_young()

    def _on_frame(self, row: FrameRow) -> None:
        self.dashboard.add_frame(row)
        self.records.frame(row)

    def _on_chunk(self, row: ChunkRow) -> None:
        self.dashboard.add_chunk(row)
        self.records.chunk(row)

    def _hud_state(self) -> HudState:
        return self.dashboard.state(
            help_lines() if self.controls.help else (),
            period_ms=1e3 / self.config.hz,
            missed=self.records.statistics.missed,
            missed_per_1000=self.records.statistics.missed_per_1000,
            chunks=self.tenant.chunks,
            in_flight=self.tenant.policy.in_flight,
            policy=self.tenant.policy.name,
            job=self.tenant.mode,
            training=self.tenant.training and not self.train.diverged,
            train_steps=self.network.step,
            loss=self.train.loss,
            psnr_db=self.train.psnr_db,
            camera=self.camera.error or self.config.camera,
            camera_age_ms=self.camera.age_ms(time.perf_counter_ns()),
            encoder_note=self.network.encoder_note,
            encoder_is_random=self.config.encoder is None,
            adapter=self.gpu.name,
            recording=self.records.recording,
        )

    # Results

    def _evaluate(self, when: str) -> float | None:
        count = self.config.held_out
        if count == 0:
            return None
        psnr = self.network.psnr(held_out(self.network.config.size)[:count])
        self.progress.say(f"{count} held-out photographs {when} the session: {psnr:.2f} dB")
        return psnr

    def _checkpoint_path(self) -> Path:
        out = self.records.out_dir
        return self.config.save or (out / CHECKPOINT.name if out else CHECKPOINT)

    def _finish_saving(self, loop: FrameLoop) -> None:
        """Save what S asked for in the last frames, and --save, which raises CheckpointError."""
        while self.saver.busy:
            loop.flush()
        if self.config.save is not None:
            self.saver.request(self.config.save)
            while self.saver.busy:
                loop.flush()
            if self.saver.error is not None:
                raise self.saver.error

    def _progress_line(self, elapsed: float) -> str:
        statistics, train = self.records.statistics, self.train
        parts = [f"{elapsed:5.1f} s", f"{statistics.frames} frames"]
        parts.append(f"{statistics.missed_per_1000:.0f} of 1000 missed")
        parts.append(f"{train.runs} steps")
        if train.psnr_db is not None:
            parts.append(f"{train.psnr_db:.1f} dB")
        return "  ".join(parts)

    def _summary(self, outcome: str, statistics: Statistics) -> dict[str, object]:
        losses = self.train.losses
        summary = Summary(
            outcome=outcome,
            chunks=self.tenant.chunks,
            in_flight=self.tenant.policy.in_flight,
            policy=self.tenant.policy.name,
            adapter=self.gpu.name,
            gpu=self.gpu.implementation,
            objects_created_in_loop=self._created,
            clock_error_us=round(self._clock.error_us, 3) if self._clock else None,
            loss_first=losses[0] if losses else None,
            loss_last=losses[-1] if losses else None,
            psnr_first_db=self._psnr[0],
            psnr_last_db=self._psnr[1],
        )
        extra = {
            "job": self.tenant.mode,
            "hz": self.config.hz,
            "camera": self.config.camera,
            "encoder": self.network.encoder_note,
            "contract": self.config.contract,
        }
        return summary.to_dict(statistics, extra)
