"""Small vocabulary shared by the WGSL generators: kernels, bindings, grids, literals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

MAX_GRID = 65535
"""WebGPU's guaranteed limit of workgroups per dimension."""

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Kernel:
    """One compute shader with its grid.

    Bindings are group 0: the read-only operands first, then the written ones, in order.
    `flops` is the arithmetic of the whole grid and serves the cost model only.
    """

    label: str
    source: str
    grid: Grid
    flops: int = 0


def bindings(reads: Sequence[tuple[str, str]], writes: Sequence[tuple[str, str]]) -> str:
    """Declare storage bindings from (name, element type) pairs."""
    lines = [
        f"@group(0) @binding({i}) var<storage, read> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(reads)
    ]
    lines += [
        f"@group(0) @binding({len(reads) + i}) var<storage, read_write> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(writes)
    ]
    return "\n".join(lines)


def linear_grid(threads: int, workgroup: int) -> Grid:
    """A grid for `threads` invocations that folds into y beyond the x limit; see LINEAR_INDEX."""
    groups = ceil(threads / workgroup)
    rows = ceil(groups / MAX_GRID)
    return (ceil(groups / rows), rows, 1)


def linear_main(threads: int, workgroup: int, body: str) -> str:
    """Entry point whose `i` runs over `threads`; the body may `return` early."""
    columns = linear_grid(threads, workgroup)[0]
    return f"""
@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x + id.y * {columns * workgroup}u;
    if (i >= {threads}u) {{ return; }}
{body}
}}
"""


def f32(value: float) -> str:
    """A WGSL f32 literal that keeps all digits."""
    text = repr(float(value))
    return f"{text}f" if text[-1] != "f" else text


ERF = """
// Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
fn erf_{suffix}(x: {T}) -> {T} {{
    let a = abs(x);
    let t = {T}(1.0) / ({T}(1.0) + {T}(0.3275911) * a);
    let p = t * ({T}(0.254829592) + t * ({T}(-0.284496736) + t * ({T}(1.421413741)
        + t * ({T}(-1.453152027) + t * {T}(1.061405429)))));
    return sign(x) * ({T}(1.0) - p * exp(-a * a));
}}
"""


def with_erf(source: str) -> str:
    """Prepend the error functions that the source calls (WGSL has none)."""
    for suffix, kind in (("v4", "vec4<f32>"), ("f1", "f32")):
        if f"erf_{suffix}(" in source:
            source = ERF.format(T=kind, suffix=suffix) + source
    return source


def broadcast_index(index: str, shape: Sequence[int], operand: Sequence[int]) -> str:
    """Expression for the offset into `operand` (broadcast to `shape`) of linear index `index`."""
    padded = (1,) * (len(shape) - len(operand)) + tuple(operand)
    terms: list[str] = []
    extent_after, stride = 1, 1
    for extent, own in zip(reversed(shape), reversed(padded), strict=True):
        if own != 1:
            quotient = index if extent_after == 1 else f"({index} / {extent_after}u)"
            outermost = extent_after * extent == _size(shape)
            coordinate = quotient if outermost else f"({quotient} % {extent}u)"
            terms.append(coordinate if stride == 1 else f"{coordinate} * {stride}u")
            stride *= own
        extent_after *= extent
    return " + ".join(terms) or "0u"


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
