"""Options of the commands, checked. Units are in the names or the help texts."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from app.scene.load import MAX_LOAD
from app.xr.presenter import PresenterChoice
from engine.implementations import Choice
from engine.specialize import Contract
from models.dinov3 import DEFAULT_DEPTH, MAX_DEPTH, PATCH
from models.vision import IMAGE

RANDOM = "random"
"""As --encoder: fixed-seed random weights."""

DEADLINE_IN_FLIGHT = 8
"""The in-flight bound that suits the deadline policy on GPUs: docs/co-tenancy.md."""

MAX_INPUT_SIZE = 1024
"""Pixels; attention's work grows with the fourth power of the side."""


class UsageError(Exception):
    """An option has an impossible value; the message says which are possible."""


@dataclass(frozen=True)
class SessionConfig:
    """What every command with a renderer and a network shares."""

    camera: str = "photos"
    """photos (a slow walk over shipped photographs), webcam:N, a video file or an image folder."""
    eye_size: int | None = None
    """Width and height of one eye image, pixels (16 to 4096). [default: 720 simulated; what the
    headset recommends]"""
    scene_load: int = 0
    """Extra light samples per pixel, in a haze: make rendering dearer at will (0 to 1000000).
    Frames that take seconds hang the GPU, so start small."""
    max_kernel_ms: float | None = None
    """Longest single kernel, ms; longer ones are split, or refused. A chunk boundary cannot fall
    inside a kernel. [default: a quarter of a refresh; none on CPU devices]"""
    encoder: str | None = None
    """DINOv3 ViT-S/16 checkpoint, safetensors or .pth, as Hugging Face or Meta publish it, or
    random. [default: the DinoVision mini encoder where it ships, else random]"""
    depth: int = DEFAULT_DEPTH
    """Layers of the encoder in use (1 to 12)."""
    input_size: int = IMAGE
    """Side of the encoder's image, pixels (16 to 1024, a multiple of 16)."""
    checkpoint: Path | None = None
    """Resume the decoder from a checkpoint."""
    seed: int = 0
    """Seed of the fresh decoder and of the photo walk."""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu, unless the contract asks
    for what only Dawn has."""
    contract: Contract = "strict"
    """Arithmetic: strict f32, or products that round their factors to 11 bits on devices with
    matrix units, which are faster (--gpu dawn)."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    @property
    def shares_images(self) -> bool:
        """Whether images are to be shared between devices, if that can be."""
        return False

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        if self.eye_size is not None and not 16 <= self.eye_size <= 4096:
            raise UsageError(f"--eye-size must be 16 to 4096 pixels, not {self.eye_size}")
        if not 0 <= self.scene_load <= MAX_LOAD:
            raise UsageError(f"--scene-load must be 0 to {MAX_LOAD}, not {self.scene_load}")
        if self.max_kernel_ms is not None and not 0 < self.max_kernel_ms < math.inf:
            raise UsageError(f"--max-kernel-ms must be above 0, not {self.max_kernel_ms:g}")
        check_encoder_shape(self.depth, self.input_size)
        if self.seed < 0:
            raise UsageError(f"--seed must be at least 0, not {self.seed}")


@dataclass(frozen=True)
class LiveConfig(SessionConfig):
    """What the commands share in which someone watches: preview and headset."""

    chunks: int = 4
    """Chunks that each training step and each inference is cut into (K, at least 1)."""
    in_flight: int | None = None
    """Most chunks in flight on the GPU, and with the fixed policy per frame (N, at least 1).
    [default: 8 with the deadline policy on GPUs, else 1]"""
    policy: Literal["fixed", "greedy", "deadline"] | None = None
    """When chunks are submitted: N per frame, always N in flight, or as the next frame allows.
    [default: deadline on GPUs, fixed on CPU devices]"""
    job: Literal["train", "infer", "both", "none"] = "both"
    """What the network does: training steps, display inference, both in turn, or nothing."""
    hz: float = 90.0
    """Refresh rate, Hz (1 to 1000); a headset takes the nearest that it has."""
    fresh: bool = False
    """Start from an untrained decoder. [default: from the shipped one, if it was trained from the
    encoder in use]"""
    frames: int | None = None
    """Stop after so many frames."""
    seconds: float | None = None
    """Stop after so many seconds. [default: until Esc or Ctrl-C; 20 with --headless]"""
    out: Path | None = None
    """Folder for the records of the run. [default: none; runs/preview with --headless]"""
    save: Path | None = None
    """Write a checkpoint of the decoder here at the end. (S writes one at any time.)"""
    rehearse: bool = True
    """Mix some of the shipped photographs into what is learnt from, so that a decoder that has
    learnt them does not forget, and a fresh one sees variety at once."""
    held_out: int = 15
    """Held-out photographs whose PSNR is measured before, during and after the session (0 to 15; 0
    leaves them out)."""
    debug_nan: bool = False
    """After a loss that is not finite, name the first kernel whose result is not. Each training
    step then waits until the loss of the one before is known."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        at_least = {"--chunks": self.chunks, "--in-flight": self.in_flight, "--frames": self.frames}
        for option, value in at_least.items():
            if value is not None and value < 1:
                raise UsageError(f"{option} must be at least 1, not {value}")
        check_hz(self.hz)
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"--seconds must be above 0, not {self.seconds:g}")
        if not 0 <= self.held_out <= 15:
            raise UsageError(f"--held-out must be 0 to 15, not {self.held_out}")
        if self.save is not None:
            check_file("--save", self.save)
        if self.fresh and self.checkpoint is not None:
            raise UsageError("--fresh and --checkpoint exclude each other")

    def scheduling(self, *, is_cpu: bool) -> tuple[str, int]:
        """Policy and in-flight bound that hold on a device."""
        policy = self.policy or ("fixed" if is_cpu else "deadline")
        bound = DEADLINE_IN_FLIGHT if policy == "deadline" and not is_cpu else 1
        return policy, self.in_flight or bound

    @property
    def out_dir(self) -> Path | None:
        """Where records go."""
        return self.out

    @property
    def run_seconds(self) -> float | None:
        """The time limit that holds."""
        return self.seconds


@dataclass(frozen=True)
class PreviewConfig(LiveConfig):
    """Watch a decoder learn to paint the camera image, in stereo, on the renderer's own queue."""

    headless: bool = False
    """Open no window; write screenshot, video and records to --out."""

    @property
    def out_dir(self) -> Path | None:
        """Where records go."""
        return self.out or (Path("runs/preview") if self.headless else None)

    @property
    def run_seconds(self) -> float | None:
        """The time limit that holds."""
        if self.seconds is None and self.headless and self.frames is None:
            return 20.0
        return self.seconds


@dataclass(frozen=True)
class HeadsetConfig(LiveConfig):
    """The same in a headset: on any OpenXR runtime, with hands and controllers."""

    driver: Literal["openxr", "headless"] = "openxr"
    """openxr: the active runtime's headset. headless: its poses and buttons, but no images
    (XR_MND_headless)."""
    presenter: PresenterChoice = "auto"
    """How eye images reach the runtime: through the host's memory, or shared between devices, which
    only Dawn can (--gpu). auto: what costs less; shared only on Dawn on a graphics card where the
    headset's device cannot read the renderer's memory."""
    render_scale: float = 1.0
    """Eye image size relative to what the runtime recommends (0.1 to 4); not with --eye-size."""
    mirror: bool = False
    """Show what the wearer sees in a window, with the preview's keys."""
    wait: float = 60.0
    """How long to wait for a runtime that went away, seconds (0: not at all)."""
    headless: bool = False
    """Open no window: the default here, for the sake of the same options everywhere."""

    @property
    def shares_images(self) -> bool:
        """Whether images are to be shared between devices, if that can be."""
        return self.presenter == "shared"

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        if not 0.1 <= self.render_scale <= 4:
            raise UsageError(f"--render-scale must be 0.1 to 4, not {self.render_scale:g}")
        if self.eye_size is not None and self.render_scale != 1.0:
            raise UsageError("--eye-size and --render-scale exclude each other")
        if not 0 <= self.wait < math.inf:
            raise UsageError(f"--wait must be at least 0 seconds, not {self.wait:g}")
        if self.mirror and self.headless:
            raise UsageError("--mirror and --headless exclude each other")


@dataclass(frozen=True)
class ExplainConfig:
    """Show what the compiler makes of a program. No device is needed, except for --check."""

    model: Annotated[str, tyro.conf.Positional]
    """Which program: a name of models/zoo.py, as train or infer."""
    stage: Literal["all", "graph", "grad", "rewrite", "plan", "memory", "wgsl"] = "all"
    """What to show: the graph, its gradient nodes, what rewriting saves, the launches, the memory,
    the source of one kernel; all: a summary of each."""
    kernel: str | None = None
    """With --stage wgsl: a launch's index or (a part of) its label."""
    size: int | None = None
    """Size of the program, as models/zoo.py says. [default: full; reduced with --check]"""
    check: bool = False
    """Run on the device at a reduced size with random inputs and compare every output and gradient
    with the float64 interpreter; exit status 1 if one differs."""
    gpu: Choice = "auto"
    """With --check: WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check_usage(self) -> None:
        """Raise UsageError for the first impossible value."""
        if self.size is not None and self.size < 1:
            raise UsageError(f"--size must be at least 1, not {self.size}")
        if self.check and self.stage != "all":
            raise UsageError("--check and --stage exclude each other")
        if self.kernel is not None and self.stage != "wgsl":
            raise UsageError("--kernel needs --stage wgsl")
        if self.stage == "wgsl" and not self.kernel:
            raise UsageError("--stage wgsl needs --kernel, an index or label of --stage plan")


@dataclass(frozen=True)
class TuneConfig:
    """Measure which kernels suit this device best; previews use them from then on."""

    model: Annotated[str | None, tyro.conf.Positional] = None
    """Whose matrix products to measure: a name of models/zoo.py. [default: train and infer]"""
    seconds: float = 60.0
    """About how long to measure, in seconds; the heaviest products come first."""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu, unless the contract asks
    for what only Dawn has."""
    contract: Contract = "strict"
    """Whose kernels to measure: strict f32 alone, or matrix units beside them; each contract has a
    table of its own."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check_usage(self) -> None:
        """Raise UsageError for the first impossible value."""
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"--seconds must be above 0, not {self.seconds:g}")


@dataclass(frozen=True)
class ReportConfig:
    """Tables, plots and one self-contained HTML page from the folder of a run or a sweep.

    A run also gets trace.pftrace, for https://ui.perfetto.dev, and its rows as CSV.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder that a run or a sweep wrote, also one that was killed."""
    other: Annotated[Path | None, tyro.conf.Positional] = None
    """A second one of the same kind, to compare with."""
    out: Path | None = None
    """HTML file to write. [default: report.html in the folder; comparison.html with two]"""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check_usage(self) -> None:
        """Raise UsageError for the first impossible value."""
        if self.out is not None:
            check_file("--out", self.out)


def check_encoder_shape(depth: int, input_size: int, option: str = "--input-size") -> None:
    """Raise UsageError unless an encoder can have so many layers and such an image."""
    if not 1 <= depth <= MAX_DEPTH:
        raise UsageError(f"--depth must be 1 to {MAX_DEPTH}, not {depth}")
    if not PATCH <= input_size <= MAX_INPUT_SIZE or input_size % PATCH:
        raise UsageError(
            f"{option} must be a multiple of {PATCH} from {PATCH} to {MAX_INPUT_SIZE}, "
            f"not {input_size}"
        )


def check_hz(hz: float) -> None:
    """Raise UsageError unless it is a refresh rate that the simulated headset can have."""
    if not 1 <= hz <= 1000:
        raise UsageError(f"--hz must be 1 to 1000, not {hz:g}")


def check_file(option: str, path: Path) -> None:
    """Raise UsageError unless a file can be written at `path`; found out before hours of work."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written: name a file in a writable folder")
