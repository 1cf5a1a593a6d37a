"""Everything that decides what is learnt, beside the photographs and the encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from engine.checkpoint import Checkpoint
from engine.errors import CheckpointError
from engine.optim import Adam
from engine.schedules import Cosine
from models.dinov3 import DEFAULT_DEPTH
from models.vision import IMAGE

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

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
    usual = Recipe(steps)
    if resumed:
        usual = _preview_recipe(resumed) or stored_recipe(resumed, Recipe)
    usual = replace(usual, decay_steps=max(steps, usual.decay_steps))
    return replace(usual, **given(options))


def given(options: Mapping[str, int | float | None]) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def stored_recipe(file: Checkpoint, kind: type[R]) -> R:
    """The recipe in a checkpoint: a dataclass. Raises CheckpointError if it cannot be read."""
    text = file.metadata.get(KEY)
    try:
        values = json.loads(text or "")
        return kind(**{field.name: values[field.name] for field in fields(kind)})
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file.path}: its recipe cannot be read: {text}") from error


def _preview_recipe(file: Checkpoint) -> Recipe | None:
    """What is known of a preview's checkpoint, which has no recipe, but a depth."""
    if KEY in file.metadata:
        return None
    text = file.metadata.get("depth", str(DEFAULT_DEPTH))
    if not text.isdecimal():
        raise CheckpointError(f"{file.path}: its depth cannot be read: {text}")
    return Recipe(1, depth=int(text))
