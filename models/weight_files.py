"""Files of weights that others publish: safetensors and PyTorch's .pth, and how faults are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.checkpoint import Checkpoint, load_checkpoint
from engine.errors import CheckpointError
from engine.torch_file import is_torch_file, load_torch_file

NAMED = 3
"""Tensors named in an error; the rest are counted."""


def read_weights(path: Path) -> Checkpoint:
    """All tensors of a safetensors or .pth file, f32. Raises CheckpointError."""
    try:
        if path.is_dir():
            raise CheckpointError(
                f"cannot read {path}, a folder: name the file in it, such as model.safetensors"
            )
        return load_torch_file(path) if is_torch_file(path) else load_checkpoint(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    text = ", ".join(f"'{name}'" for name in names[:NAMED])
    return text + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


@dataclass(frozen=True)
class Weights:
    """A file that is meant to hold the network `what`.

    Where files of a whole model have "model." before their names, files of its core alone may lack
    it: both are found.
    """

    file: Checkpoint
    what: str

    def take(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The tensors of these names and shapes. Raises CheckpointError naming what is wrong."""
        sources = {name: self._source(name) for name in shapes}
        if missing := [name for name, source in sources.items() if source is None]:
            raise CheckpointError(
                f"{self.file.path} is no whole {self.what}: it lacks {listed(missing)}, and has "
                f"{listed(sorted(self.file.tensors)) or 'nothing'}"
            )
        values = {name: self.file.tensors[source] for name, source in sources.items() if source}
        for name, value in values.items():
            if value.shape != tuple(shapes[name]):
                raise CheckpointError(
                    f"{self.file.path}: '{name}' has shape {list(value.shape)}, {self.what} has "
                    f"{list(shapes[name])}"
                )
            if not np.isfinite(value).all():
                raise CheckpointError(
                    f"{self.file.path}: '{name}' holds values that are not finite"
                )
        return values

    def _source(self, name: str) -> str | None:
        names = (name, name.removeprefix("model."))
        return next((found for found in names if found in self.file.tensors), None)
