"""Which WebGPU implementation opens the device, and what is told when it cannot."""

import sys

import pytest

from engine import gpu as gpu_module
from engine.errors import GpuError
from engine.gpu import Gpu
from engine.implementations import VARIABLE, candidates, load
from engine.implementations.implementation import Implementation


@pytest.mark.parametrize(
    ("variable", "choice", "matrix_units", "expected"),
    [
        (None, "auto", False, ("wgpu",)),
        ("auto", "auto", False, ("wgpu",)),
        (None, "auto", True, ("dawn", "wgpu")),
        ("dawn", "auto", False, ("dawn",)),
        ("wgpu", "auto", True, ("wgpu",)),
        ("dawn", "wgpu", True, ("wgpu",)),
        ("metal", "dawn", False, ("dawn",)),
    ],
)
def test_choice(
    variable: str | None,
    choice: str,
    matrix_units: bool,
    expected: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    assert candidates(choice, matrix_units=matrix_units) == expected


def test_a_variable_that_names_none_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "metal")
    with pytest.raises(GpuError, match=r"DINOVISION_GPU=metal: .* use wgpu, dawn or auto$"):
        Gpu.open()


def test_dawn_that_is_not_installed_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpudawn", None)
    monkeypatch.delitem(sys.modules, "engine.implementations.dawn", raising=False)
    with pytest.raises(GpuError, match=r"pip install 'dinovision\[dawn\]', or use --gpu wgpu"):
        load.__wrapped__("dawn")


def test_whoever_wants_matrix_units_gets_wgpu_where_dawn_has_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def refuse(name: str) -> Implementation:
        tried.append(name)
        raise GpuError(f"no {name} here")

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(gpu_module, "load", refuse)
    with pytest.raises(GpuError, match="no wgpu here"):
        Gpu.open(matrix_units=True)
    assert tried == ["dawn", "wgpu"]
