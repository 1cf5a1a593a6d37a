"""What row-wise kernels share: softmax, normalisation, losses.

A row kernel gives `lanes` invocations to one row: they stride over it, and a tree in shared memory
combines their partial results in a fixed order, so results are reproducible bit for bit. With one
lane, for CPU devices, an invocation walks its row alone and no barrier is needed.
"""

from __future__ import annotations

from math import ceil

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
    folds = ceil(rows / MAX_GRID)
    columns = ceil(rows / folds)
    enter = f"""    let row = workgroup.x + workgroup.y * {columns}u;
    if (row >= {rows}u) {{ return; }}
"""
    source = f"""{head}
var<workgroup> partial: array<f32, {lanes}>;
{_tree("total", lanes, "partial[t] + partial[t + half]")}
{_tree("largest", lanes, "max(partial[t], partial[t + half])")}
{entry_point(lanes, enter + body)}"""
    return Kernel(label, with_erf(source), (columns, folds, 1), flops)


def _tree(name: str, lanes: int, combine: str) -> str:
    return f"""
fn {name}(value: f32, t: u32) -> f32 {{
    workgroupBarrier();
    partial[t] = value;
    for (var half = {lanes // 2}u; half > 0u; half /= 2u) {{
        workgroupBarrier();
        if (t < half) {{ partial[t] = {combine}; }}
    }}
    workgroupBarrier();
    return partial[0];
}}"""


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
