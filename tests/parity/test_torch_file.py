"""PyTorch's own files, read without PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.torch_file import is_torch_file, load_torch_file

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.reference


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights ü.pth"


def tensors(dtype=torch.float32) -> dict:
    """Tensors of every kind of view, and a parameter."""
    base = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    return {
        "whole": base,
        "transposed": base.T,
        "rows": base[1:3],
        "every other": base[::2, 1::3],
        "scalar": base[2, 3],
        "none": base[:0],
        "parameter": torch.nn.Parameter(base * 2),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_was_saved_is_read(dtype, path: Path) -> None:
    saved = tensors(dtype)
    torch.save(saved, path)
    assert is_torch_file(path)
    file = load_torch_file(path)
    assert file.path == path and file.metadata == {}
    assert file.tensors.keys() == saved.keys()
    for name, value in saved.items():
        got = file.tensors[name]
        assert got.dtype == np.float32 and got.flags.c_contiguous
        assert got.shape == tuple(value.shape), name
        assert np.array_equal(got, value.detach().float().numpy()), name


def test_a_module_s_state_dict(path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    state = module.state_dict()
    assert isinstance(state, OrderedDict)
    torch.save(state, path)
    got = load_torch_file(path).tensors
    assert got.keys() == state.keys()
    assert all(np.array_equal(got[name], value.numpy()) for name, value in state.items())


def complaint(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_torch_file(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (torch.nn.Linear(2, 2), "('torch.nn.modules.linear.Linear'): save the state_dict() alone"),
        ({"steps": torch.ones(2, dtype=torch.int32)}, "'torch.IntStorage'"),
        ({"model": {"weight": torch.ones(2)}}, "is not tensors by name"),
        ({"weight": torch.ones(2), "epoch": 3}, "is not tensors by name"),
        ([torch.ones(2)], "is not tensors by name"),
    ],
)
def test_other_contents_are_refused(value: object, named: str, path: Path) -> None:
    torch.save(value, path)
    assert named in complaint(path)


def test_files_from_before_1_6(path: Path) -> None:
    torch.save(tensors(), path, _use_new_zipfile_serialization=False)
    assert is_torch_file(path)
    assert "is not a whole file of PyTorch 1.6 or later" in complaint(path)


def test_every_truncation_is_found(path: Path) -> None:
    torch.save(tensors(), path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        complaint(path)


@pytest.mark.parametrize("mask", [0x01, 0x08, 0x80, 0xFF])
def test_a_flipped_byte_never_surprises(mask: int, path: Path) -> None:
    saved = {name: value.detach().numpy() for name, value in tensors().items()}
    torch.save(tensors(), path)
    whole = path.read_bytes()
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        try:
            got = load_torch_file(path).tensors
        except CheckpointError as error:
            refused += 1
            assert "\n" not in str(error)
        else:  # the flip hit padding or a field that nobody needs
            assert all(np.array_equal(got[name], value) for name, value in saved.items())
    assert refused > 500


def test_a_tensor_that_is_no_part_of_its_storage(path: Path) -> None:
    stretched = torch.ones(3).expand(10**9, 3)
    torch.save({"stretched": stretched}, path)
    assert "'stretched' reaches beyond its storage" in complaint(path)
