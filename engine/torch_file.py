"""PyTorch's own checkpoint files (.pth), read without PyTorch and without trusting them.

Such a file is a zip archive: a pickle of the state dict, and one entry of raw bytes per storage.
The unpickler here knows only what state dicts are made of and refuses every other name, so that a
file cannot run code. It yields descriptions of tensors; their bytes are read afterwards.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.checkpoint import Checkpoint, floats
from engine.errors import CheckpointError

MAGICS = (b"PK\x03\x04", b"\x80\x02")
"""How files begin: archives since PyTorch 1.6, plain pickles before."""

STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
}

DAMAGE = (zipfile.BadZipFile, EOFError, OverflowError, RuntimeError, ValueError, struct.error)
"""What reading a damaged archive raises; RuntimeError: it seems to be encrypted."""


def is_torch_file(path: Path) -> bool:
    """Whether the file begins like one of PyTorch's. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(4).startswith(MAGICS)


def load_torch_file(path: Path) -> Checkpoint:
    """Read the tensors of a state dict saved by PyTorch 1.6 or later, floats and i64, as f32.

    Raises CheckpointError when the file is missing, damaged or holds anything but tensors by name.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return Checkpoint(path, _Archive(path, archive).tensors(), {})
    except DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else "it ends early"
        raise CheckpointError(
            f"{path} is not a whole file of PyTorch 1.6 or later ({reason}): fetch it again, or "
            "save it anew"
        ) from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


class _Storage(NamedTuple):
    """An entry of the archive: its dtype, as safetensors calls it, and its key."""

    dtype: str
    key: str


class _View(NamedTuple):
    """A tensor as a strided view of a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past the last element of the storage that the view reaches."""
        if 0 in self.shape:
            return self.offset
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + sum((length - 1) * stride for length, stride in steps) + 1


class _Archive:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._zip = path, archive
        self._storages: dict[_Storage, np.ndarray] = {}
        names = [name for name in archive.namelist() if Path(name).name == "data.pkl"]
        if len(names) != 1:
            raise CheckpointError(f"{path} is a zip archive, but not one that PyTorch wrote")
        self._root = names[0].removesuffix("data.pkl")

    def tensors(self) -> dict[str, np.ndarray]:
        orders = [n for n in self._zip.namelist() if n == f"{self._root}byteorder"]
        if orders and self._read("byteorder") != b"little":
            raise CheckpointError(f"{self.path} was written on a big-endian machine: convert it")
        views = _unpickle(self.path, self._read("data.pkl"))
        return {name: self._tensor(name, view) for name, view in views.items()}

    def _read(self, name: str) -> bytes:
        entry = self._zip.getinfo(self._root + name)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{self.path} is compressed: zip it without compression")
        return self._zip.read(entry)

    def _tensor(self, name: str, view: _View) -> np.ndarray:
        storage = self._storage(view.storage)
        # No view may be larger than its storage either: strides of 0 could repeat it endlessly.
        negative = min((view.offset, *view.shape, *view.strides)) < 0
        if negative or view.end > storage.size or prod(view.shape) > storage.size:
            raise CheckpointError(f"{self.path} is damaged: '{name}' reaches beyond its storage")
        strides = [stride * storage.itemsize for stride in view.strides]
        seen = np.lib.stride_tricks.as_strided(storage[view.offset :], view.shape, strides)
        return np.ascontiguousarray(seen).reshape(view.shape)

    def _storage(self, storage: _Storage) -> np.ndarray:
        if storage not in self._storages:
            try:
                raw = self._read(f"data/{storage.key}")
                self._storages[storage] = floats(storage.dtype, raw)
            except (KeyError, ValueError) as error:
                raise CheckpointError(f"{self.path} is damaged: {error}") from error
        return self._storages[storage]


def _unpickle(path: Path, data: bytes) -> dict[str, _View]:
    try:
        value = _Unpickler(io.BytesIO(data)).load()
    except _UnknownNameError as error:
        raise CheckpointError(
            f"{path} holds more than float tensors ('{error}'): save the state_dict() alone"
        ) from error
    except Exception as error:  # A damaged pickle fails in any way there is.
        raise CheckpointError(f"{path} is damaged: its pickle cannot be read") from error
    views = value if isinstance(value, dict) else {}
    if not views or not all(isinstance(v, _View) for v in views.values()):
        raise CheckpointError(f"{path} is not tensors by name: save the model's state_dict() alone")
    return {str(name): view for name, view in views.items()}


class _UnknownNameError(Exception):
    """A pickle names something that no state dict is made of."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        match f"{module}.{name}":
            case "collections.OrderedDict":
                return OrderedDict
            case "torch._utils._rebuild_tensor_v2":
                return self._tensor
            case "torch._utils._rebuild_parameter":
                return self._parameter
            case other:
                raise _UnknownNameError(other)

    def persistent_load(self, pid: object) -> _Storage:
        kind, dtype, key, _device, _size = pid if isinstance(pid, tuple) else ()
        if kind != "storage":
            raise ValueError(f"unknown reference {kind!r}")
        return _Storage(str(dtype), str(key))

    def _tensor(
        self,
        storage: _Storage,
        offset: int,
        shape: Sequence[int],
        strides: Sequence[int],
        *_requires_grad_and_hooks: object,
    ) -> _View:
        if not isinstance(storage, _Storage) or len(shape) != len(strides):
            raise ValueError("a tensor without a storage")
        return _View(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))

    def _parameter(self, view: _View, *_requires_grad_and_hooks: object) -> _View:
        return view
