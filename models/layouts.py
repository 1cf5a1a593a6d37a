"""How published ("native") parameters lie in the engine, and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np


@dataclass(frozen=True)
class Layout:
    """A native tensor, the order in which the engine stores its axes, and its shape there."""

    native: tuple[int, ...]
    axes: tuple[int, ...]
    engine: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Whether this is the weight of a dense layer."""
        return self.axes == (1, 0)

    @property
    def torch(self) -> tuple[int, ...]:
        """Shape in PyTorch's and Hugging Face's files, where dense weights are transposed."""
        return self.engine if self.is_dense else self.native

    def from_torch(self, value: np.ndarray) -> np.ndarray:
        """As such a file has it -> engine."""
        return value if self.is_dense else self.to_engine(value)

    def to_engine(self, value: np.ndarray) -> np.ndarray:
        """Native -> engine."""
        return np.ascontiguousarray(value.transpose(self.axes)).reshape(self.engine)

    def to_native(self, value: np.ndarray) -> np.ndarray:
        """Engine -> native."""
        stored = value.reshape([self.native[axis] for axis in self.axes])
        return np.ascontiguousarray(stored.transpose(np.argsort(self.axes)))


def unchanged(*shape: int) -> Layout:
    """Biases, norms, embeddings: stored as published."""
    return Layout(shape, tuple(range(len(shape))), shape)


def dense(inputs: int, outputs: int) -> Layout:
    """Native [inputs, outputs], for y = x W; stored transposed, as `ops.linear` takes it."""
    return Layout((inputs, outputs), (1, 0), (outputs, inputs))


def conv(outputs: int, inputs: int, *kernel: int) -> Layout:
    """Native [outputs, inputs, *kernel]; stored [outputs, kernel * inputs], the inputs last."""
    native = (outputs, inputs, *kernel)
    axes = (0, *range(2, len(native)), 1)
    return Layout(native, axes, (outputs, prod(native[1:])))
