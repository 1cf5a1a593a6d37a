"""A session that someone watches, in a window or a headset: wires everything to the frame loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from app.camera import held_out, rehearsed
from app.config import LiveConfig
from app.interrupt import Interrupt
from app.loop import FrameLoop, Viewer
from app.preview.actions import Kind
from app.preview.controls import Controls
from app.preview.dashboard import Dashboard
from app.preview.handling import Handling
from app.preview.hud_painter import HudPainter
from app.preview.reconnect import run_with_headset
from app.preview.records import Records
from app.preview.saving import CheckpointSaver
from app.preview.telling import hud_state, progress_line, summary
from app.preview.viewers import VideoViewer, WindowViewer
from app.preview.window import PreviewWindow
from app.progress import Progress
from app.punctual import collect_young, punctual_python
from app.rig import Rig
from app.scene.hud import render_hud
from app.scene.mirror import Mirror
from app.telemetry.rows import ChunkRow, FrameRow, QualityRow
from app.tenancy.held_out import HeldOutTrace
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
        self.psnr_db: tuple[float | None, float | None] = (None, None)
        self.objects_created = 0
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
        shipped_decoder = not config.fresh
        self.rig.build(self.driver.view_size, 1e3 / config.hz, shipped_decoder=shipped_decoder)
        self.network, self.scene = self.rig.network, self.rig.scene
        self.rig.show(self.driver)
        self.clock = self.rig.clock()
        self.stamps = self.rig.stamps(self.clock)
        self.handling = Handling(self.scene)
        self._open_viewers()
        self._open_tenant(owned)
        policy, in_flight = self._scheduling
        description = {
            "command": self._command,
            "options": asdict(config) | {"policy": policy, "in_flight": in_flight},
            **self.rig.provenance(),
        }
        self.records = Records(
            config.out_dir, description, self.video, partial(summary, self), self.clock
        )

    @property
    def _scheduling(self) -> tuple[str, int]:
        return self.config.scheduling(is_cpu=self.gpu.facts.is_cpu)

    def _open_viewers(self) -> None:
        device = self.gpu.device
        self.video = VideoViewer(self.gpu, self.scene.eyes_view)
        self.viewers: list[Viewer] = [self.video]
        self.mirror: Mirror | None = None
        if self.window is not None:
            self.mirror = Mirror(device, self.scene.eyes_view, self.window.format)
            self.viewers.append(WindowViewer(self.window, self.mirror))

    def _open_tenant(self, owned: ExitStack) -> None:
        config, size = self.config, self.config.input_size
        self.watch = NanWatch(self.network) if config.debug_nan else None
        self.held_out: HeldOutTrace | None = None
        if config.held_out:
            photos = held_out(size)[: config.held_out]
            self.held_out = HeldOutTrace(self.network, photos, self._on_quality)
        policy, in_flight = self._scheduling
        self.tenant, self.train, self.infer = self.rig.tenant(
            self.stamps,
            policy=policy,
            in_flight=in_flight,
            chunks=config.chunks,
            mode=config.job,
            owned=owned,
            watch=self.watch,
            rehearsed=rehearsed(size) if config.rehearse else (),
            held_out=self.held_out,
        )
        self.dashboard = Dashboard()
        self.hud = HudPainter()
        owned.callback(self.hud.close)
        self.controls = Controls(self.tenant, self.infer, self.scene, self.mirror, self.dashboard)
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
            result = self.records.finish(outcome)
        return result

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
        self.clock = self.records.clock = self.rig.recalibrated(self.clock)
        self.records.screenshot(self.rig.picture())
        self._finish_saving(loop)
        if not interrupt.requested or evaluation_s < SLOW_EVALUATION_S:
            self.psnr_db = (self.psnr_db[0], self._evaluate("after"))
        return "interrupted" if interrupt.requested else "ok"

    def _loop(self, loop: FrameLoop, running: Callable[[], bool]) -> None:
        before = self.gpu.objects_created
        try:
            run_with_headset(loop, running, wait_s=self._wait_s, say=self._say)
        except XrEnded as ended:
            self._say(str(ended))
        loop.finish()
        self.objects_created = self.gpu.objects_created - before

    def _say(self, text: str) -> None:
        """To the terminal and the HUD."""
        self.progress.say(text)
        self.dashboard.say(text)

    def _warm_up(self) -> float:
        """Use everything once; returns what the first evaluation took, in seconds."""
        self.scene.set_hud(render_hud(hud_state(self)))
        self.rig.warm_up_scene(self.driver)
        encoder = self.gpu.device.create_command_encoder()
        self.video.encode(encoder)
        self.gpu.submit(encoder)
        self.gpu.wait()
        # Last of all: the curve of held-out figures starts here.
        started = time.perf_counter()
        self.psnr_db = (self._evaluate("before"), None)
        self.gpu.take_completions()
        return time.perf_counter() - started

    def _running(self, loop: FrameLoop, interrupt: Interrupt) -> Callable[[], bool]:
        started = time.perf_counter()
        seconds, frames = self.config.run_seconds, self.config.frames

        def running() -> bool:
            elapsed = time.perf_counter() - started
            self.progress.update(lambda: progress_line(self, elapsed))
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
            self.hud.paint(hud_state(self))
        collect_young()

    def _on_frame(self, row: FrameRow) -> None:
        self.dashboard.add_frame(row)
        self.records.frame(row)

    def _on_chunk(self, row: ChunkRow) -> None:
        self.dashboard.add_chunk(row)
        self.records.chunk(row)

    def _on_quality(self, row: QualityRow) -> None:
        self.dashboard.add_quality(row)
        self.records.quality(row)

    # Results

    def _evaluate(self, when: str) -> float | None:
        if self.held_out is None:
            return None
        psnr, count = self.held_out.measure(), self.config.held_out
        if psnr is not None:
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
