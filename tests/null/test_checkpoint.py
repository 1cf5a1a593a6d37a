"""Checkpoint files: round trips, damage of every kind, other files."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from engine.checkpoint import FORMAT, load_checkpoint, save_checkpoint
from engine.errors import CheckpointError

TENSORS = {
    "decoder.weight": np.arange(12, dtype=np.float32).reshape(3, 4) - 5.5,
    "decoder.bias": np.array([1e-40, -0.0, np.inf], np.float32),
    "scalar": np.array(7, np.float32),
}
METADATA = {"step": "12", "note": "Überprüfung"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decoder.safetensors"


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


def complaint(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


# -- round trips --


def test_round_trip_is_exact(path: Path) -> None:
    save_checkpoint(path, TENSORS, METADATA)
    file = load_checkpoint(path)
    assert file.path == path
    assert file.metadata == METADATA | {"format": FORMAT}
    assert file.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        got = file.tensors[name]
        assert got.dtype == np.float32 and got.shape == value.shape
        assert got.tobytes() == value.tobytes()
    assert list(path.parent.iterdir()) == [path]


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=4, max_side=5)))
def test_any_array_survives(tmp_path_factory: pytest.TempPathFactory, value: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save_checkpoint(path, {"x": value}, {})
    assert load_checkpoint(path).tensors["x"].tobytes() == value.tobytes()


def test_views_are_saved_as_what_they_show(path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    save_checkpoint(path, {"t": whole.T, "s": whole[::2, 1:3]}, {})
    tensors = load_checkpoint(path).tensors
    assert np.array_equal(tensors["t"], whole.T)
    assert np.array_equal(tensors["s"], whole[::2, 1:3])


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.safetensors"
    save_checkpoint(path, TENSORS, {})
    assert load_checkpoint(path).tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_other_floats_become_f32(dtype: str, path: Path, rng: np.random.Generator) -> None:
    wanted = rng.standard_normal((3, 5)).astype(np.float32)
    wanted[0, 0] = np.inf
    if dtype == "BF16":
        raw = (wanted.view(np.uint32) >> 16).astype(np.uint16)
        wanted = (raw.astype(np.uint32) << 16).view(np.float32)
    else:
        raw = wanted.astype(np.float16 if dtype == "F16" else np.float64)
        wanted = raw.astype(np.float32)
    write_raw(path, {"x": entry(dtype, [3, 5], raw.nbytes)}, raw.tobytes())
    got = load_checkpoint(path).tensors["x"]
    assert got.dtype == np.float32
    assert np.array_equal(got, wanted)


def test_metadata_may_be_missing(path: Path) -> None:
    headers: list[dict[str, Any]] = [{}, {"__metadata__": None}, {"__metadata__": {}}]
    for header in headers:
        write_raw(path, header | {"x": entry("F32", [1], 4)}, bytes(4))
        assert load_checkpoint(path).metadata == {}


# -- damage --


def test_every_truncation_is_found(path: Path) -> None:
    save_checkpoint(path, TENSORS, METADATA)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert "is not a whole safetensors file" in complaint(path)
    path.write_bytes(whole + b"\0")
    complaint(path)


@pytest.mark.parametrize("mask", [0x01, 0x10, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_in_the_header_never_surprises(mask: int, path: Path) -> None:
    save_checkpoint(path, TENSORS, METADATA)
    whole = path.read_bytes()
    wanted = {name: value.shape for name, value in TENSORS.items()}
    (length,) = struct.unpack("<Q", whole[:8])
    refused = 0
    for position in range(8 + length):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        try:
            tensors = load_checkpoint(path).pick(wanted)
        except CheckpointError as error:
            refused += 1
            assert "\n" not in str(error)
        else:  # the flip hit metadata or padding: what is loaded is right
            for name, value in TENSORS.items():
                assert tensors[name].tobytes() == value.tobytes()
    assert refused > length / 2


@pytest.mark.parametrize("mask", [1, 128])
def test_a_flipped_byte_in_a_tensor_is_noticed(mask: int, path: Path) -> None:
    save_checkpoint(path, TENSORS, METADATA)
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    for position in range(8 + length, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        assert "is damaged" in complaint(path)


@pytest.mark.parametrize(
    "content", [b"", b"12345678", b"a text file\n" * 100, b"PK\x03\x04" + bytes(500), bytes(64)]
)
def test_other_files(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    assert "is not a whole safetensors file" in complaint(path)


@pytest.mark.parametrize(
    "header", [b"[]", b"null", b"{", b'{"x": 1}', b'{"__metadata__": {"a": 1}}']
)
def test_headers_that_are_no_headers(header: bytes, path: Path) -> None:
    complaint(write_raw(path, header))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "No such file" in complaint(tmp_path / "none")
    assert "directory" in complaint(tmp_path)


@pytest.mark.parametrize("dtype", ["U64", "I32", "U8", "BOOL"])
def test_integers_are_refused(dtype: str, path: Path) -> None:
    size = {"U64": 8, "I32": 4}.get(dtype, 1)
    write_raw(path, {"ids": entry(dtype, [2], 2 * size)}, bytes(2 * size))
    message = complaint(path)
    assert "'ids'" in message and dtype in message


def test_pick_names_what_is_wrong(path: Path) -> None:
    save_checkpoint(path, TENSORS, {})
    file = load_checkpoint(path)
    assert file.pick({"scalar": ()}) == {"scalar": 7}
    with pytest.raises(CheckpointError, match=r"lacks the tensor 'encoder\.weight'"):
        file.pick({"scalar": (), "encoder.weight": (1,)})
    with pytest.raises(CheckpointError, match=r"'decoder\.weight' has shape \[3, 4\].*\[4, 3\]"):
        file.pick({"decoder.weight": (4, 3)})


# -- writing --


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_whole(
    step: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(path, TENSORS, METADATA)
    old = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFile:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> FullFile:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            full()

    if step == "write":
        opened = open
        opener = lambda *args: FullFile(opened(*args))  # noqa: E731
        monkeypatch.setattr("engine.atomic.open", opener, raising=False)
    else:
        monkeypatch.setattr(os, step, full)
    with pytest.raises(CheckpointError, match=r"cannot write .*: No space left on device"):
        save_checkpoint(path, {"x": np.zeros(1000, np.float32)}, {})
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for path in (file / "below", tmp_path):
        with pytest.raises(CheckpointError, match="cannot write"):
            save_checkpoint(path, TENSORS, {})
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "kept"


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    """Whatever the order: published hashes must be reproducible."""
    tensors = {name: np.full((3, 2), k, np.float32) for k, name in enumerate(("b", "a", "ü.c"))}
    metadata = {f"key {k}": f"value {k}" for k in range(12)}
    files = [tmp_path / f"{k}.safetensors" for k in range(4)]
    for k, file in enumerate(files):
        reverse = slice(None, None, -1 if k % 2 else 1)
        save_checkpoint(
            file, dict(list(tensors.items())[reverse]), dict(list(metadata.items())[reverse])
        )
    assert len({file.read_bytes() for file in files}) == 1
    loaded = load_checkpoint(files[0])
    assert loaded.tensors.keys() == tensors.keys() and metadata.items() <= loaded.metadata.items()
