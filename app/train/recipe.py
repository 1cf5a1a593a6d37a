"""Everything that decides what is learnt, beside the photographs and the encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from engine.checkpoint import Checkpoint
from engine.errors import CheckpointError
from engine.optim import Adam
from engine.schedules import Cosine
from models.dinov3 import DEFAULT_DEPTH
from models.vision import IMAGE

KEY = "recipe"
"""Metadata key in checkpoints."""
WARMUP = 100
"""Steps of warm-up, but at most a tenth of all."""
FINAL = 0.01
"""Factor of the learning rate at the cosine's end."""


@dataclass(frozen=True)
class Recipe:
    """The options that learning depends on; equal recipes learn bit-equally on a device."""

    decay_steps: int
    """Step at which the cosine ends."""
    seed: int = 0
    batch: int = 8
    """Samples per step."""
    rate: float = 2e-3
    """Adam's, at its highest."""
    size: int = IMAGE
    """Side of a sample, pixels."""
    depth: int = DEFAULT_DEPTH
    """Layers of the encoder."""

    @property
    def optimizer(self) -> Adam:
        """Adam with warm-up and cosine decay."""
        warmup = min(WARMUP, self.decay_steps // 10)
        return Adam(rate=self.rate, schedule=Cosine(self.decay_steps, warmup, FINAL))

    def metadata(self) -> dict[str, str]:
        """What a checkpoint says of it."""
        return {KEY: json.dumps(asdict(self)), "optimizer": repr(self.optimizer)}


def choose_recipe(
    options: Mapping[str, int | float | None], steps: int, resumed: Checkpoint | None
) -> Recipe:
    """The options that were given; the others as in the resumed checkpoint, or as usual.

    The cosine goes on to where it was planned to end, or to the last step if that is later. Raises
    CheckpointError if the checkpoint's recipe cannot be read.
    """
    given = {name: value for name, value in options.items() if value is not None}
    stored = _stored(resumed) if resumed else None
    usual = Recipe(steps) if stored is None else stored
    usual = replace(usual, decay_steps=max(steps, usual.decay_steps))
    return replace(usual, **given)  # type: ignore[arg-type]


def _stored(file: Checkpoint) -> Recipe | None:
    """The recipe in a checkpoint; a preview's has none, but a depth."""
    text = file.metadata.get(KEY)
    try:
        if text is None:
            return Recipe(1, depth=int(file.metadata.get("depth", DEFAULT_DEPTH)))
        values = json.loads(text)
        return Recipe(**{field.name: values[field.name] for field in fields(Recipe)})
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file.path}: its recipe cannot be read: {text}") from error
