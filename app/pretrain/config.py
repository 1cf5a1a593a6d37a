"""Options of the pretrain command, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

from app.config import UsageError, check_encoder_shape, check_file
from app.pretrain.recipe import STEPS, PretrainRecipe
from app.train.config import MOST_RATE
from engine.implementations import Choice
from models.dinov3 import DEFAULT_DEPTH
from models.vision import IMAGE

MOST_PHOTOS = 1024
MOST_PROTOTYPES = 65536


@dataclass(frozen=True)
class PretrainConfig:
    """Train an encoder of DINOv3's architecture from photographs alone, without labels.

    The defaults are the recipe of the shipped "DinoVision mini encoder", but for its --decay-steps
    of 12000. The result is JSON on the last line. Ctrl-C saves, and says how to go on.
    """

    out: Path
    """Encoder to write, for --encoder: safetensors, f16, in Hugging Face's layout. Always the
    newest."""
    data: Path | None = None
    """Folder of photographs to learn from, with the folders below it. Held-out files among them are
    left out. [default: 155 shipped ones]"""
    steps: int = STEPS
    """Steps in all, those before a resumed checkpoint included."""
    seconds: float | None = None
    """Stop, as Ctrl-C would, after so many seconds of training. [default: none]"""
    checkpoint: Path | None = None
    """State of training to write, safetensors, for --resume. [default: beside the encoder, named
    NAME.training.safetensors]"""
    resume: Path | None = None
    """Go on from this state, with its options where none are given: bit-equal to a run without a
    break."""
    held_out: Path | None = None
    """Folder of photographs never trained on, for the evidence. [default: 15 shipped ones]"""
    evidence: Path | None = None
    """Folder for evidence.json and components.png, renewed with each checkpoint. [default: none]"""
    every: int = 1000
    """Steps between two checkpoints, with figures each."""
    seed: int | None = None
    """Seed of the fresh encoder and of all views. [default: 0]"""
    batch: int | None = None
    """Photographs per step (1 to 1024), two views of each. [default: 32]"""
    rate: float | None = None
    """AdamW's learning rate at its highest: after a warm-up of at most 300 steps, before a cosine
    to a hundredth. [default: 0.001]"""
    weight_decay: float | None = None
    """Decoupled weight decay (at least 0). [default: 0.04]"""
    decay_steps: int | None = None
    """Step at which the cosines of the rate and of the teacher end. [default: the last]"""
    size: int | None = None
    """Side of a view, pixels (16 to 1024, a multiple of 16). [default: 224]"""
    depth: int | None = None
    """Layers of the encoder (1 to 12). [default: 3]"""
    masked: float | None = None
    """Share of the views from which the student misses patches (0 to 1). [default: 0.5]"""
    prototypes: int | None = None
    """Prototypes that tokens are assigned to (2 to 65536). [default: 512]"""
    teacher_temperature: float | None = None
    """Lower: sharper assignments by the teacher (0.02 to 1). [default: 0.04]"""
    reconstruction: float | None = None
    """Weight of painting pixels back from single tokens (at least 0). [default: 20]"""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check_usage(self) -> None:
        """Raise UsageError for the first impossible value."""
        ranges = (
            ("--steps", self.steps, 1, math.inf),
            ("--every", self.every, 1, math.inf),
            ("--decay-steps", self.decay_steps, 1, math.inf),
            ("--seed", self.seed, 0, math.inf),
            ("--batch", self.batch, 1, MOST_PHOTOS),
            ("--weight-decay", self.weight_decay, 0, MOST_RATE),
            ("--masked", self.masked, 0, 1),
            ("--prototypes", self.prototypes, 2, MOST_PROTOTYPES),
            ("--teacher-temperature", self.teacher_temperature, 0.02, 1),
            ("--reconstruction", self.reconstruction, 0, MOST_RATE),
        )
        for option, value, least, most in ranges:
            if value is not None and not least <= value <= most:
                bound = f"at least {least}" if most == math.inf else f"{least} to {most:g}"
                raise UsageError(f"{option} must be {bound}, not {value:g}")
        for option, number in (("--rate", self.rate), ("--seconds", self.seconds)):
            if number is not None and not 0 < number <= MOST_RATE:
                raise UsageError(f"{option} must be above 0, at most {MOST_RATE:g}, not {number:g}")
        depth, size = self.depth, self.size
        check_encoder_shape(
            DEFAULT_DEPTH if depth is None else depth, IMAGE if size is None else size, "--size"
        )
        check_file("--out", self.out)
        check_file("--checkpoint", self.state_file)
        if self.state_file == self.out:
            raise UsageError("--checkpoint and --out must be two files")
        if self.evidence is not None and self.evidence.exists() and not self.evidence.is_dir():
            raise UsageError(f"--evidence {self.evidence} is a file: name a folder")

    @property
    def state_file(self) -> Path:
        """Where the state of training goes."""
        return self.checkpoint or self.out.with_name(f"{self.out.stem}.training.safetensors")

    def recipe_options(self) -> dict[str, int | float | None]:
        """Fields of a recipe; None where no option was given."""
        names = [field.name for field in fields(PretrainRecipe)]
        return {name: getattr(self, name) for name in names}
