"""Checkpoints: safetensors files, written whole or not at all, checked before being loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from engine.atomic import write_atomic
from engine.errors import CheckpointError

FORMAT = "dinovision-checkpoint-1"

DIGEST = "sha256"
"""Metadata key of the checksum; files of other programs have none and are not checked."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, as f32, and the file's string metadata."""

    path: Path
    tensors: Mapping[str, np.ndarray]
    metadata: Mapping[str, str]

    def pick(self, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The tensors named in `wanted`, which maps names to shapes.

        Raises CheckpointError naming the first missing tensor or wrong shape.
        """
        picked = {}
        for name, shape in wanted.items():
            if name not in self.tensors:
                raise CheckpointError(
                    f"{self.path} lacks the tensor '{name}': it is not a checkpoint of this model"
                )
            value = self.tensors[name]
            if value.shape != tuple(shape):
                raise CheckpointError(
                    f"{self.path}: '{name}' has shape {list(value.shape)}, "
                    f"this model needs {list(shape)}"
                )
            picked[name] = value
        return picked


def save_checkpoint(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file atomically; equal contents give equal bytes.

    Raises CheckpointError when the disk refuses; an older file at `path` then stays whole.
    """
    stored = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    noted = {"format": FORMAT, **metadata}
    contents = {name: (value.shape, value.tobytes()) for name, value in stored.items()}
    data = safetensors.numpy.save(stored, {**noted, DIGEST: _digest(contents, noted)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, _with_sorted_header(data))
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a safetensors file; f16, bf16, f64 and i64 tensors become f32, others are an error.

    Raises CheckpointError when the file is missing, truncated or not safetensors, or when its
    contents differ from what `save_checkpoint` wrote.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        entries = safetensors.deserialize(data)
        metadata = _metadata(data)
    except (safetensors.SafetensorError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} is not a whole safetensors file: {reason}") from error
    expected = metadata.pop(DIGEST, None)
    contents = {name: (entry["shape"], bytes(entry["data"])) for name, entry in entries}
    if expected is not None and _digest(contents, metadata) != expected:
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum")
    tensors = {name: _as_f32(path, name, entry) for name, entry in entries}
    return Checkpoint(path, tensors, metadata)


def _digest(
    contents: Mapping[str, tuple[Sequence[int], bytes]], metadata: Mapping[str, str]
) -> str:
    """SHA-256 over names, shapes and bytes of all tensors, and the rest of the metadata."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, (shape, raw) in sorted(contents.items()):
        digest.update(json.dumps([name, list(shape), len(raw)]).encode())
        digest.update(raw)
    return digest.hexdigest()


def _with_sorted_header(data: bytes) -> bytes:
    """A safetensors file with its header in order: the library writes metadata in any."""
    length = int.from_bytes(data[:8], "little")
    parsed = json.loads(data[8 : 8 + length])
    header = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    padded = header.ljust(-(-len(header) // 8) * 8)
    return len(padded).to_bytes(8, "little") + padded + data[8 + length :]


def _metadata(data: bytes) -> dict[str, str]:
    """The `__metadata__` of the header: 8 bytes of little-endian length, then JSON."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return dict(header.get("__metadata__") or {})


def floats(dtype: str, raw: bytes | bytearray) -> np.ndarray:
    """Little-endian F16, BF16, F32, F64 or I64, as safetensors calls them -> f32 [n].

    I64 is for the counters that PyTorch keeps beside statistics; large ones are rounded. Raises
    ValueError for other dtypes and for bytes that are no whole number of elements.
    """
    if dtype == "BF16":  # unknown to NumPy: the upper half of an f32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F16", "F32", "F64"):
        return np.frombuffer(raw, f"<f{int(dtype[1:]) // 8}").astype(np.float32)
    if dtype == "I64":
        return np.frombuffer(raw, "<i8").astype(np.float32)
    raise ValueError(f"dtype {dtype}; only floats and counters (I64) are supported")


def _as_f32(path: Path, name: str, entry: Mapping[str, object]) -> np.ndarray:
    dtype, raw = str(entry["dtype"]), entry["data"]
    assert isinstance(raw, bytes | bytearray) and isinstance(entry["shape"], list)
    try:
        return floats(dtype, raw).reshape(entry["shape"])
    except ValueError as error:
        raise CheckpointError(f"{path}: '{name}' has {error}") from error
