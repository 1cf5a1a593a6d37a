"""The encoder that decoders learn from: the shipped one, a file's, or random weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

import assets
from app.config import RANDOM, UsageError
from engine.graph import Graph
from models.dinov3 import PATCH, encode
from models.dinov3_files import load_encoder
from models.nn import initial_parameters

ENCODER_SEED = 20260801
"""Seed of the random encoder: always the same features, so that decoders can be resumed."""

RANDOM_ENCODER = "random encoder, not DINOv3"
MINI_ENCODER = "DinoVision mini encoder"
MINI_DEPTH = 3
"""Layers of the mini encoder."""


@dataclass(frozen=True)
class Encoder:
    """The first `depth` layers' parameters by name, and what to call them."""

    depth: int
    note: str
    tensors: dict[str, np.ndarray] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights, whatever file they came from."""
        return weights_digest(self.tensors)

    @property
    def is_random(self) -> bool:
        """Whether it has learnt nothing."""
        return self.note == RANDOM_ENCODER

    def trained(self, metadata: Mapping[str, str]) -> bool:
        """Whether a checkpoint with this metadata learnt from this encoder, as far as it says."""
        if "encoder_sha256" in metadata:
            return metadata["encoder_sha256"] == self.digest
        return metadata.get("encoder", self.note) == self.note


def open_encoder(choice: str | None, depth: int) -> Encoder:
    """`choice`: a DINOv3 file, "random", or None for the mini encoder that ships.

    Without a shipped one None means random. Raises CheckpointError for other files, UsageError for
    more layers than the mini encoder has.
    """
    shipped = assets.encoder_file()
    if choice is None and shipped.exists():
        if depth > MINI_DEPTH:
            raise UsageError(
                f"the mini encoder has {MINI_DEPTH} layers, not {depth}: take fewer, or another "
                f"--encoder (a file, or {RANDOM})"
            )
        return Encoder(depth, MINI_ENCODER, load_encoder(shipped, depth))
    if choice is not None and choice != RANDOM:
        path = Path(choice)
        return Encoder(depth, f"encoder: {path.name}", load_encoder(path, depth))
    graph = Graph()
    encode(graph.input("image", (PATCH, PATCH, 3)), depth)
    return Encoder(depth, RANDOM_ENCODER, initial_parameters(graph, ENCODER_SEED))


def weights_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes and f32 contents, whatever the file and the order."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(json.dumps([name, list(value.shape)]).encode())
        digest.update(np.ascontiguousarray(value, "<f4").tobytes())
    return digest.hexdigest()
