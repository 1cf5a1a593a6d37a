"""Everything that decides what an encoder learns, beside the photographs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from app.train.recipe import KEY, given, stored_recipe
from engine.checkpoint import Checkpoint
from engine.optim import AdamW
from engine.schedules import Cosine
from models.dinov3 import DEFAULT_DEPTH
from models.pretraining import Objective
from models.vision import IMAGE

STEPS = 8000
"""Of the shipped encoder."""
WARMUP = 300
"""Steps of warm-up, but at most a tenth of all."""
FINAL = 0.01
"""Factor of the learning rate at the cosine's end."""
CLIP = 3.0
"""Largest norm of a step's gradient."""
AVERAGE_RATE = 0.01
"""How far the teacher moves towards the student in the first step; a cosine leads to 0."""


@dataclass(frozen=True)
class PretrainRecipe:
    """The options that learning depends on; equal recipes learn bit-equally on a device."""

    decay_steps: int = STEPS
    """Step at which the cosines end."""
    seed: int = 0
    batch: int = 32
    """Photographs per step, two views of each."""
    rate: float = 1e-3
    """AdamW's, at its highest."""
    weight_decay: float = 0.04
    size: int = IMAGE
    """Side of a view, pixels."""
    depth: int = DEFAULT_DEPTH
    """Layers of the encoder."""
    masked: float = 0.5
    """Share of the views from which the student misses patches."""
    prototypes: int = 512
    teacher_temperature: float = 0.04
    reconstruction: float = 20.0
    """Weight of the pixels' mean squared error."""

    @property
    def optimizer(self) -> AdamW:
        """AdamW with warm-up, cosine decay and clipping."""
        warmup = min(WARMUP, self.decay_steps // 10)
        return AdamW(
            rate=self.rate,
            weight_decay=self.weight_decay,
            clip_norm=CLIP,
            schedule=Cosine(self.decay_steps, warmup, FINAL),
        )

    @property
    def objective(self) -> Objective:
        """What the student learns."""
        return Objective(
            prototypes=self.prototypes,
            teacher_temperature=self.teacher_temperature,
            reconstruction=self.reconstruction,
        )

    def average_rate(self, run: int) -> np.ndarray:
        """f32 [1] fed to `engine.averaging.RATE` before run number `run` (the first is 1)."""
        return np.array([AVERAGE_RATE * Cosine(self.decay_steps)(run)], np.float32)

    def metadata(self) -> dict[str, str]:
        """What a file says of it."""
        return {KEY: json.dumps(asdict(self)), "optimizer": repr(self.optimizer)}


def choose_recipe(
    options: Mapping[str, int | float | None], steps: int, resumed: Checkpoint | None
) -> PretrainRecipe:
    """The options that were given; the others as in the resumed checkpoint, or as shipped.

    The cosines go on to where they were planned to end, or to the last step if that is later.
    Raises CheckpointError if the checkpoint's recipe cannot be read.
    """
    usual = PretrainRecipe(steps)
    if resumed:
        usual = stored_recipe(resumed, PretrainRecipe)
        usual = replace(usual, decay_steps=max(steps, usual.decay_steps))
    return replace(usual, **given(options))
