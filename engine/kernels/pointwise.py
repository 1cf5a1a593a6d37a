"""Generator for elementwise kernels: a straight-line program over broadcast operands.

Roofline: pure bandwidth, one read per operand and one write. Four elements per invocation where
the innermost axis allows aligned vec4 access for every operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from engine.kernels.wgsl import (
    Kernel,
    bindings,
    broadcast_index,
    linear_grid,
    linear_main,
    with_erf,
)

WORKGROUP = 64


@dataclass(frozen=True)
class Step:
    """One operation: `emit(type, *argument names)` gives its WGSL expression."""

    emit: Callable[..., str]
    arguments: tuple[int, ...]
    """Indices into the operands followed by the results of earlier steps."""


def pointwise(
    label: str, steps: Sequence[Step], shape: Sequence[int], operands: Sequence[Sequence[int]]
) -> Kernel:
    """Kernel for a program whose last step is the result of the given shape."""
    size = prod(shape)
    wide = all(_wide(shape, operand) for operand in operands)
    kind = "vec4<f32>" if wide else "f32"
    count = size // 4 if wide else size
    lines = [
        f"    let v{k} = {_load(k, shape, operand, wide)};" for k, operand in enumerate(operands)
    ]
    for number, step in enumerate(steps, start=len(operands)):
        arguments = [f"v{a}" for a in step.arguments]
        lines.append(f"    let v{number} = {step.emit(kind, *arguments)};")
    lines.append(f"    y[i] = v{len(operands) + len(steps) - 1};")
    body = "\n".join(lines)
    reads = [
        (f"x{k}", "vec4<f32>" if wide and prod(operand) > 1 else "f32")
        for k, operand in enumerate(operands)
    ]
    source = bindings(reads, [("y", kind)]) + linear_main(count, WORKGROUP, body)
    return Kernel(label, with_erf(source), linear_grid(count, WORKGROUP), flops=size * len(steps))


def _wide(shape: Sequence[int], operand: Sequence[int]) -> bool:
    """Whether four neighbours of the result are four neighbours, or one scalar, of `operand`."""
    if not shape or shape[-1] % 4:
        return False
    return prod(operand) == 1 or operand[-1] == shape[-1]


def _load(k: int, shape: Sequence[int], operand: Sequence[int], wide: bool) -> str:
    if not wide:
        return f"x{k}[{broadcast_index('i', shape, operand)}]"
    if prod(operand) == 1:
        return f"vec4<f32>(x{k}[0])"
    quarter = [*shape[:-1], shape[-1] // 4]
    return f"x{k}[{broadcast_index('i', quarter, [*operand[:-1], operand[-1] // 4])}]"
