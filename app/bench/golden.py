"""Reference files: what another framework computed for a workload at full size, in figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.hashing import hash_uniform
from models.workload import Network


@dataclass(frozen=True)
class Gradient:
    """A gradient as a reference file has it: its norm, and its product with a hashed probe.

    The probe is linear, so it sees exchanged elements and signs, which a norm does not.
    """

    norm: float
    probe: float

    @staticmethod
    def of(name: str, native: np.ndarray) -> Gradient:
        """What a reference file would say of a gradient in its native layout."""
        flat = native.astype(np.float64).ravel()
        direction = hash_uniform(f"probe:{name}", flat.shape, 1.0).astype(np.float64)
        return Gradient(float(np.linalg.norm(flat)), float(flat @ direction))


@dataclass(frozen=True)
class Golden:
    """A reference file."""

    output_shape: tuple[int, ...]
    output_l2: float
    sample: np.ndarray
    loss: float
    gradients: dict[str, Gradient]
    shapes: dict[str, tuple[int, ...]]

    @staticmethod
    def read(path: Path) -> Golden:
        """Raises OSError, or ValueError where the file is no reference file."""
        try:
            data = json.loads(path.read_text())
            norms, probes = data["gradient_norms"], data["gradient_probes"]
            return Golden(
                output_shape=tuple(data["output_shape"]),
                output_l2=float(data["output_l2"]),
                sample=np.array(data["output_sample_256"], np.float64),
                loss=float(data["loss"]),
                gradients={
                    name: Gradient(float(norms[name]), float(probes[name])) for name in norms
                },
                shapes={name: tuple(shape) for name, shape in data["parameter_shapes"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no reference file: {error!r}") from error


def sample(output: np.ndarray, count: int = 256) -> np.ndarray:
    """At most `count` elements evenly spread over a flat output, ends included."""
    last, count = output.size - 1, min(count, output.size)
    return output.ravel()[[k * last // max(count - 1, 1) for k in range(count)]]


def require_same_parameters(network: Network, golden: Golden) -> None:
    """Raises ValueError for the first name or native shape that differs."""
    shapes = {name: layout.native for name, layout in network.layouts.items()}
    for name in sorted(shapes.keys() | golden.shapes.keys()):
        mine, wanted = shapes.get(name, "missing"), golden.shapes.get(name, "missing")
        if mine != wanted:
            raise ValueError(f"parameter '{name}' is {mine} here, {wanted} in the reference")
