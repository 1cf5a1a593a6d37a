"""What row-wise kernels share: softmax, normalisation, losses.

A row kernel gives `lanes` invocations to one row: they stride over it, and a tree in shared memory
combines their partial results in a fixed order, so results are reproducible bit for bit. With one
lane, for CPU devices, an invocation walks its row alone and no barrier is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from engine.kernels.columns import SIZES
from engine.kernels.operands import element
from engine.kernels.wgsl import MAX_GRID, Kernel, entry_point, linear_grid, linear_main, with_erf

LOWEST = "-3.0e38"
"""Stands for minus infinity, which WGSL may assume never occurs."""


def row_kernel(label: str, head: str, rows: int, lanes: int, body: str, flops: int) -> Kernel:
    """Kernel whose body sees `row` and lane `t`, and may call total(v, t) and largest(v, t)."""
    if lanes == 1:
        alone = "fn total(v: f32, t: u32) -> f32 { return v; }\n"
        alone += "fn largest(v: f32, t: u32) -> f32 { return v; }\n"
        source = head + alone + linear_main(rows, 64, f"{{ let row = i; let t = 0u;\n{body}\n}}")
        return Kernel(label, with_erf(source), linear_grid(rows, 64), flops)
    kernels = [
        _workgroups(label, head, rows // each, each, lanes, body, flops)
        for each in (1, 2, 4, 8, 16, 32)
        if rows % each == 0 and (each == 1 or each * lanes in SIZES)
    ]
    # Fewer than 32 invocations leave some of a GPU's lanes idle.
    usual = kernels.pop(1 if lanes < 32 and len(kernels) > 1 else 0)
    return replace(usual, resized=tuple(kernels))


def _workgroups(
    label: str, head: str, count: int, each: int, lanes: int, body: str, flops: int
) -> Kernel:
    """The kernel of `count` workgroups that have `each` rows; their trees stand side by side."""
    folds = ceil(count / MAX_GRID)
    columns = ceil(count / folds)
    first, own = "const lane0 = 0u;", "    { let row = group;"
    if each > 1:
        first = "var<private> lane0: u32;"
        own = f"""    lane0 = t / {lanes}u * {lanes}u;
    let row = group * {each}u + t / {lanes}u;
    let lane = t % {lanes}u;
    {{ let t = lane;"""
    enter = f"""    let group = workgroup.x + workgroup.y * {columns}u;
    if (group >= {count}u) {{ return; }}
{own}
{body}
    }}"""
    source = f"""{head}
var<workgroup> partial: array<f32, {each * lanes}>;
{first}
{_tree("total", lanes, "{} + {}")}
{_tree("largest", lanes, "max({}, {})")}
{entry_point(each * lanes, enter)}"""
    return Kernel(label, with_erf(source), (columns, folds, 1), flops)


FAN_IN = 8
"""Partial results that one invocation combines before all of them combine the rest."""


def _tree(name: str, lanes: int, combine: str) -> str:
    rest = max(1, lanes // FAN_IN)
    some = _combined([f"partial[lane0 + t + {n * rest}u]" for n in range(lanes // rest)], combine)
    return f"""
fn {name}(value: f32, t: u32) -> f32 {{
    workgroupBarrier();
    partial[lane0 + t] = value;
    workgroupBarrier();
    if (t < {rest}u) {{ partial[lane0 + t] = {some}; }}
    workgroupBarrier();
    return {_combined([f"partial[lane0 + {n}u]" for n in range(rest)], combine)};
}}"""


def _combined(values: Sequence[str], combine: str) -> str:
    """Neighbours first, so that few wait for each other."""
    while len(values) > 1:
        pairs = [combine.format(*values[n : n + 2]) for n in range(0, len(values) - 1, 2)]
        values = [f"({pair})" for pair in pairs] + list(values[len(values) & ~1 :])
    return values[0]


def across(extent: int) -> str:
    """WGSL `across(v)`, the sum, and `highest(v)`, the maximum, within one element of a buffer
    whose rows have this extent.
    """
    kind = element(extent)
    if kind == "f32":
        return """
fn across(v: f32) -> f32 { return v; }
fn highest(v: f32) -> f32 { return v; }
"""
    return """
fn across(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }
fn highest(v: vec4<f32>) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }
"""
