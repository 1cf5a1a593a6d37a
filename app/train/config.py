"""Options of the train command, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.config import UsageError, check_encoder_shape, check_file
from engine.implementations import Choice
from engine.specialize import Contract
from models.dinov3 import DEFAULT_DEPTH
from models.vision import IMAGE

MOST_SAMPLES = 4096
MOST_RATE = 1e30
"""What Adam makes of it must fit f32."""


@dataclass(frozen=True)
class TrainConfig:
    """Teach a decoder to paint photographs back from an encoder's tokens; no window, no frames.

    The result is JSON on the last line. Ctrl-C saves, and says how to go on.
    """

    data: Path
    """Folder of photographs to learn from, with the folders below it. Held-out files among them
    are left out."""
    steps: int
    """Steps in all, those before a resumed checkpoint included."""
    out: Path
    """Checkpoint to write, safetensors: always the newest. Replaced if it exists."""
    weights: Path | None = None
    """File for the newest weights alone, a third of a checkpoint: to use, not to go on exactly.
    [default: none]"""
    encoder: str | None = None
    """DINOv3 ViT-S/16 checkpoint, safetensors or .pth, as Hugging Face or Meta publish it, or
    random. [default: the DinoVision mini encoder where it ships, else random]"""
    resume: Path | None = None
    """Go on from this checkpoint, with its options where none are given: bit-equal to a run
    without a break."""
    held_out: Path | None = None
    """Folder of photographs never trained on, for PSNR figures. [default: 15 shipped ones]"""
    every: int = 500
    """Steps between two checkpoints, with a held-out figure each."""
    seed: int | None = None
    """Seed of the fresh decoder and of all samples. [default: 0]"""
    batch: int | None = None
    """Samples per step (1 to 4096). [default: 8]"""
    rate: float | None = None
    """Adam's learning rate at its highest: after a warm-up of at most 100 steps, before a cosine
    to a hundredth. [default: 0.002]"""
    decay_steps: int | None = None
    """Step at which the cosine ends. [default: the last]"""
    size: int | None = None
    """Side of a sample, pixels (16 to 1024, a multiple of 16). [default: 224]"""
    depth: int | None = None
    """Layers of the encoder in use (1 to 12). [default: 3]"""
    contract: Contract = "strict"
    """Arithmetic: strict f32, or products that round their factors to 11 bits on devices with
    matrix units, which are faster (--gpu dawn)."""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check_usage(self) -> None:
        """Raise UsageError for the first impossible value."""
        at_least = {"--steps": self.steps, "--every": self.every, "--decay-steps": self.decay_steps}
        for option, value in at_least.items():
            if value is not None and value < 1:
                raise UsageError(f"{option} must be at least 1, not {value}")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"--seed must be at least 0, not {self.seed}")
        if self.batch is not None and not 1 <= self.batch <= MOST_SAMPLES:
            raise UsageError(f"--batch must be 1 to {MOST_SAMPLES}, not {self.batch}")
        if self.rate is not None and not 0 < self.rate <= MOST_RATE:
            raise UsageError(f"--rate must be above 0, at most {MOST_RATE:g}, not {self.rate:g}")
        depth, size = self.depth, self.size
        check_encoder_shape(
            DEFAULT_DEPTH if depth is None else depth, IMAGE if size is None else size, "--size"
        )
        check_file("--out", self.out)
        if self.weights is not None:
            check_file("--weights", self.weights)
            if self.weights == self.out:
                raise UsageError("--weights and --out must be two files")

    def recipe_options(self) -> dict[str, int | float | None]:
        """Fields of a recipe; None where no option was given."""
        names = ("decay_steps", "seed", "batch", "rate", "size", "depth")
        return {name: getattr(self, name) for name in names}
