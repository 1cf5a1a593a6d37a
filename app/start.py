"""What a session's decoder starts from: nothing, the trained one that ships, or a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import assets
from app.encoder import Encoder
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.errors import CheckpointError
from engine.optim import Adam, Optimizer
from engine.schedules import Warmup

LEARNING = Adam(rate=1.5e-3, schedule=Warmup(10))
"""For a fresh decoder: see docs/measurements.md."""

ADAPTING = Adam(rate=5e-5, schedule=Warmup(100))
"""For a trained one, which larger steps would throw off what it has learnt."""

LIVE = {repr(optimizer): optimizer for optimizer in (LEARNING, ADAPTING)}
"""Sessions' optimisers by what their checkpoints call them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Where learning begins."""

    note: str
    """For people."""
    optimizer: Optimizer = LEARNING
    file: Checkpoint | None = None
    """Weights, perhaps with optimiser state; None: random ones."""

    @property
    def step(self) -> int:
        """Steps that the optimiser state has learnt; 0 without one. Raises CheckpointError."""
        return 0 if self.file is None else steps_learnt(self.file)


def choose_start(checkpoint: Path | None, encoder: Encoder, *, shipped: bool) -> Start:
    """`checkpoint` if one is named, else the decoder that ships if wanted and fit for the encoder.

    Raises CheckpointError for unusable files.
    """
    if checkpoint is not None:
        return _resumed(load_checkpoint(checkpoint), encoder)
    file = assets.decoder_file()
    if not shipped or not file.exists():
        return Start("fresh decoder")
    decoder = load_checkpoint(file)
    if not encoder.trained(decoder.metadata):
        return Start("fresh decoder: the shipped one was trained from another encoder")
    weights = {n: v for n, v in decoder.tensors.items() if n.startswith("decoder.")}
    return Start("trained decoder", ADAPTING, Checkpoint(file, weights, decoder.metadata))


def has_state(file: Checkpoint) -> bool:
    """Whether it holds an optimiser's moments."""
    return any(name.startswith("adam_m.") for name in file.tensors)


def steps_learnt(file: Checkpoint) -> int:
    """Steps that the optimiser state in a file has learnt; 0 without one.

    Raises CheckpointError when the file does not tell.
    """
    if not has_state(file):
        return 0
    text = file.metadata.get("step", "")
    if not text.isdecimal():
        raise CheckpointError(f"{file.path} does not say how many steps it has learnt: '{text}'")
    return int(text)


def _resumed(file: Checkpoint, encoder: Encoder) -> Start:
    depth = file.metadata.get("depth", str(encoder.depth))
    if not encoder.trained(file.metadata) or depth != str(encoder.depth):
        log.warning(
            "%s was trained on '%s', not on '%s': expect poor pictures at first",
            file.path,
            f"{file.metadata.get('encoder', 'another encoder')}, depth {depth}",
            f"{encoder.note}, depth {encoder.depth}",
        )
    # A session goes on as it was; what `train` has learnt is adapted.
    optimizer = LIVE.get(file.metadata.get("optimizer", ""), ADAPTING)
    return Start(f"decoder: {file.path.name}", optimizer, file)
