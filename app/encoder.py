"""The encoder that a decoder learns from: a file's, or random weights that are always the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.graph import Graph
from models.dinov3 import PATCH, encode
from models.dinov3_files import load_encoder
from models.nn import initial_parameters

ENCODER_SEED = 20260801
"""Seed of the random encoder: always the same features, so that decoders can be resumed."""

RANDOM_ENCODER = "random encoder, not DINOv3"


@dataclass(frozen=True)
class Encoder:
    """The first `depth` layers' parameters by name, and what to call them."""

    depth: int
    note: str
    tensors: dict[str, np.ndarray] = field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the weights, whatever file they came from."""
        return weights_digest(self.tensors)

    def trained(self, metadata: Mapping[str, str]) -> bool:
        """Whether a checkpoint with this metadata learnt from this encoder, as far as it says."""
        if "encoder_sha256" in metadata:
            return metadata["encoder_sha256"] == self.digest
        return metadata.get("encoder", self.note) == self.note


def open_encoder(path: Path | None, depth: int) -> Encoder:
    """The encoder of a DINOv3 file, or the random one. Raises CheckpointError for other files."""
    if path is not None:
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
