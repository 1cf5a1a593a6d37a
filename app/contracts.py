"""Opening a device for a contract: what products may round, and what to say where it cannot be."""

from __future__ import annotations

from collections.abc import Callable

from engine.gpu import Gpu
from engine.implementations import Choice
from engine.matrix_check import units_are_right
from engine.specialize import Contract


def open_for(choice: Choice, contract: Contract, say: Callable[[str], None]) -> Gpu:
    """The device for programs under a contract.

    Where it has no matrix units that help, or wrong ones, one line tells that products stay strict.
    Raises GpuError when there is no device.
    """
    gpu = Gpu.open(choice, matrix_units=contract == "accelerated")
    if gpu.contract == "accelerated" and not units_are_right(gpu):
        gpu.contract = "strict"
        say(
            f"--contract {contract}: the matrix units of {gpu.name} give wrong results through "
            f"{gpu.implementation}; computing in strict f32"
        )
        return gpu
    tell(gpu, contract, say)
    return gpu


def tell(gpu: Gpu, contract: Contract, say: Callable[[str], None]) -> None:
    """Say that a device cannot do what the contract asks for, if so."""
    if gpu.contract != contract:
        say(
            f"--contract {contract}: no matrix units through {gpu.implementation} on {gpu.name}; "
            "computing in strict f32"
        )
