"""What every session with both tenants needs: camera, device, network, scene, GPU clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import numpy as np

from app.camera import CaptureThread, Frame, Image, open_camera
from app.config import SessionConfig
from app.contracts import open_for
from app.network import Network, NetworkConfig
from app.progress import Progress
from app.revision import revision
from app.scene.renderer import PanelSources, SceneRenderer
from app.telemetry.stamps import Stamps
from app.tenancy.held_out import HeldOutTrace
from app.tenancy.jobs import InferJob, TrainJob
from app.tenancy.nan_watch import NanWatch
from app.tenancy.policy import make_policy
from app.tenancy.tenant import Tenant
from app.xr.driver import XrDriver
from engine.clock import Calibration, Clock, ClockCalibrator
from engine.errors import GpuError
from engine.gpu import Gpu
from engine.timestamps import GpuTimer
from models.dinov3 import PATCH

CAMERA_TIMEOUT_S = 10.0

KERNEL_SHARE = 0.25
"""Longest kernel by default, as a share of a refresh period."""

WARM_UP_FRAMES = 3


class Rig:
    """Opened in two steps, so that what fails most often fails before the compiler runs.

    `owned` closes what was opened. Raises CameraError or GpuError; `build` CheckpointError or
    KernelTooLong.
    """

    network: Network
    scene: SceneRenderer

    def __init__(self, config: SessionConfig, progress: Progress, owned: ExitStack) -> None:
        self.config, self.progress = config, progress
        source = open_camera(config.camera, config.input_size, config.seed)
        self.camera = owned.enter_context(CaptureThread(source, config.input_size))
        self.camera.wait_first(CAMERA_TIMEOUT_S)
        self.gpu = _open_gpu(config, progress.say)
        progress.say(f"adapter: {self.gpu.name}")

    def build(
        self, view_size: tuple[int, int], period_ms: float, *, shipped_decoder: bool = False
    ) -> None:
        """Compile network and scene, and measure what the network's launches take here.

        `view_size`: one eye, pixels. `period_ms`: the shortest refresh period of the session.
        `shipped_decoder`: whether to start from it, where it fits the encoder.
        """
        config, gpu = self.config, self.gpu
        self.progress.say("compiling encoder, decoder and training step")
        size = config.input_size
        self.network = Network(
            gpu,
            NetworkConfig(
                encoder=config.encoder,
                checkpoint=config.checkpoint,
                depth=config.depth,
                size=size,
                seed=config.seed,
                shipped_decoder=shipped_decoder,
            ),
        )
        self.progress.say(f"{self.network.encoder.note}; {self.network.start.note}")
        self.progress.say("measuring kernels")
        self.network.warm_up(self._max_kernel_ms(period_ms))
        infer = self.network.infer
        panels = PanelSources(
            infer.range("painted"), infer.range("components"), size, size // PATCH
        )
        samples = 1 if gpu.facts.is_cpu else 4
        self.scene = SceneRenderer(gpu.device, view_size, panels, samples=samples)
        self.scene.load = config.scene_load
        self.timer, self._calibrator = GpuTimer(gpu), ClockCalibrator(gpu)

    def _max_kernel_ms(self, period_ms: float) -> float | None:
        if self.config.max_kernel_ms is not None or self.gpu.facts.is_cpu:
            return self.config.max_kernel_ms
        return KERNEL_SHARE * period_ms

    def show(self, driver: XrDriver) -> None:
        """Let the open driver show the scene, and say how its images go."""
        driver.show(self.gpu, self.scene.eyes)
        if driver.presenter is not None:
            self.progress.say(driver.presenter.note)

    def warm_up_scene(self, driver: XrDriver) -> None:
        """Draw a few frames, so that drivers finish compiling."""
        self.scene.set_camera(self.image().image)
        for _ in range(WARM_UP_FRAMES):
            self.scene.set_views(driver.locate_views(0))
            encoder = self.gpu.device.create_command_encoder()
            self.scene.encode(encoder)
            self.gpu.submit(encoder)
            self.gpu.wait()
        self.gpu.take_completions()

    def image(self) -> Frame:
        """The newest camera image."""
        frame = self.camera.latest()
        assert frame is not None, "the camera gave a first image during set-up"
        return frame

    def calibrate(self) -> Calibration | None:
        """Compare GPU and CPU clocks, some 20 ms; None when the device has no timestamps."""
        calibration = self._calibrator.calibrate()
        self.gpu.take_completions()
        return calibration

    def clock(self) -> Clock | None:
        """A clock that holds from now on."""
        calibration = self.calibrate()
        return Clock(calibration) if calibration is not None else None

    def recalibrated(self, clock: Clock | None) -> Clock | None:
        """The clock with the drift since its start, compared once more at a session's end."""
        end = self.calibrate() if clock is not None else None
        return Clock(clock.start, end) if clock is not None and end is not None else clock

    def stamps(self, clock: Clock | None) -> Stamps:
        """GPU times for a frame loop; none when `clock` is None."""
        return Stamps(self.timer, clock)

    def tenant(
        self,
        stamps: Stamps,
        *,
        policy: str,
        in_flight: int,
        chunks: int,
        mode: str,
        owned: ExitStack,
        watch: NanWatch | None = None,
        rehearsed: Sequence[Image] = (),
        held_out: HeldOutTrace | None = None,
    ) -> tuple[Tenant, TrainJob, InferJob]:
        """The network as a tenant, with its two jobs; `owned` closes them."""
        train = TrainJob(self.network, self.image, watch, rehearsed)
        infer = InferJob(self.network, self.image, held_out)
        owned.callback(infer.close)
        tenant = Tenant(
            {"train": train, "infer": infer},
            make_policy(policy, in_flight),
            chunks=chunks,
            mode=mode,
            new_encoder=self.gpu.device.create_command_encoder,
            submit=self.gpu.submit,
            span=stamps.span,
        )
        return tenant, train, infer

    def provenance(self) -> dict[str, object]:
        """What figures of a session depend on, for its records."""
        return {
            "adapter": self.gpu.name,
            "driver": self.gpu.driver,
            "encoder": self.network.encoder.note,
            "decoder": self.network.start.note,
            "revision": revision(),
        }

    def picture(self) -> np.ndarray:
        """Both eyes of the last frame, uint8 [h, 2 w, 4]. Waits for the device."""
        width, height = self.scene.eye_size
        data = self.gpu.queue.read_texture(
            {"texture": self.scene.eyes},
            {"bytes_per_row": 8 * width, "rows_per_image": height},
            (2 * width, height, 1),
        )
        return np.frombuffer(data, np.uint8).reshape(height, 2 * width, 4)


def _open_gpu(config: SessionConfig, say: Callable[[str], None]) -> Gpu:
    """The device; Dawn's before another where images are to be shared. Raises GpuError."""
    if config.gpu == "auto" and config.shares_images:
        with suppress(GpuError):
            return open_for("dawn", config.contract, say)
    return open_for(config.gpu, config.contract, say)
