"""Which WebGPU implementation runs: wgpu-native through wgpu-py, or Dawn through wgpudawn.

Both have the API of wgpu-py and the C functions of webgpu.h; everything else in which they differ
is in `native` and `dawn`. Either may be used in a process, or both.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Literal, get_args

from engine.errors import GpuError
from engine.implementations.implementation import Implementation, Name

NAMES: tuple[Name, ...] = get_args(Name)

Choice = Literal["auto", "wgpu", "dawn"]
"""auto: what DINOVISION_GPU says, else wgpu, unless Dawn is what a caller needs."""

VARIABLE = "DINOVISION_GPU"
"""Environment variable: the implementation where a command does not name one."""


@cache
def load(name: Name) -> Implementation:
    """An implementation, its libraries loaded. Raises GpuError when it is not installed."""
    if name == "dawn":
        from engine.implementations.dawn import Dawn

        return Dawn()
    from engine.implementations.native import Native

    return Native()


def candidates(choice: Choice, *, matrix_units: bool = False) -> tuple[Name, ...]:
    """What to try, in order. `matrix_units`: whether the caller computes faster with them.

    Raises GpuError when DINOVISION_GPU names no implementation.
    """
    named = os.environ.get(VARIABLE, "") if choice == "auto" else choice
    if named in NAMES:
        return (named,)
    if named not in ("", "auto"):
        raise GpuError(f"{VARIABLE}={named}: no such implementation; use wgpu, dawn or auto")
    return ("dawn", "wgpu") if matrix_units else ("wgpu",)
