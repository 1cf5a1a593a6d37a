"""Generator for elementwise kernels: a straight-line program over broadcast operands.

Roofline: pure bandwidth, one read per operand and one write. Four elements per invocation where
the innermost axis allows aligned vec4 access for every operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from engine.kernels.splits import Given, Splits
from engine.kernels.wgsl import (
    Kernel,
    Step,
    bindings,
    broadcast_index,
    linear_grid,
    linear_main,
    with_erf,
)

WORKGROUP = 64


def element_of(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> str:
    """WGSL type of the elements that one invocation computes."""
    return "vec4<f32>" if all(_wide(shape, operand) for operand in operands) else "f32"


def pointwise(
    label: str,
    steps: Sequence[Step],
    shape: Sequence[int],
    operands: Sequence[Sequence[int]],
    finished: tuple[int, Splits] | None = None,
) -> Kernel:
    """Kernel for a program whose last step is the result of the given shape.

    `finished`: the number of an operand of that shape that is a product to be finished here. What
    is left of it is bound in the operand's place, and the operand is the first result.
    """
    size = prod(shape)
    kind = element_of(shape, operands)
    wide = kind != "f32"
    count = size // 4 if wide else size
    place, splits = finished or (-1, None)
    given = [
        Given(f"x{k}", kind if prod(operand) > 1 else "f32", splits if k == place else None)
        for k, operand in enumerate(operands)
    ]
    lines = [x.finish("i") for x in given]
    lines += [
        f"    let v{k} = {_load(k, shape, operand, wide)};" for k, operand in enumerate(operands)
    ]
    for number, step in enumerate(steps, start=len(operands)):
        arguments = [f"v{a}" for a in step.arguments]
        lines.append(f"    let v{number} = {step.emit(kind, *arguments)};")
    lines.append(f"    y[i] = v{len(operands) + len(steps) - 1};")
    body = "\n".join(lines)
    reads = [binding for x in given for binding in x.reads()]
    writes = [binding for x in given for binding in x.writes()]
    source = bindings(reads, [*writes, ("y", kind)])
    source += "".join(x.function() for x in given) + linear_main(count, WORKGROUP, body)
    flops = size * len(steps) + sum(x.flops for x in given)
    return Kernel(label, with_erf(source), linear_grid(count, WORKGROUP), flops)


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
