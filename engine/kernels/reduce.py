"""Generators for row-wise kernels: sums, softmax, normalisation and their gradients.

Every row kernel gives one workgroup to one row: lanes stride over the row, and a tree in shared
memory combines their partial results in a fixed order, so results are reproducible bit for bit.
Roofline: bandwidth; each pass over the row reads it once.
"""

from __future__ import annotations

from math import ceil

from engine.kernels.wgsl import MAX_GRID, Grid, Kernel, bindings, f32, linear_grid, linear_main

LANES = 64


def row_grid(rows: int) -> Grid:
    """One workgroup per row, folded into y beyond the x limit."""
    folds = ceil(rows / MAX_GRID)
    return (ceil(rows / folds), folds, 1)


def row_main(rows: int, body: str) -> str:
    """Entry point with `row` (workgroup) and `t` (lane); `total(v)` sums v over the lanes."""
    columns = row_grid(rows)[0]
    return f"""
var<workgroup> partial: array<f32, {LANES}>;
{_tree("total", "partial[t] + partial[t + half]")}
{_tree("largest", "max(partial[t], partial[t + half])")}
@compute @workgroup_size({LANES})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let row = group.x + group.y * {columns}u;
    if (row >= {rows}u) {{ return; }}
{body}
}}
"""


def _tree(name: str, combine: str) -> str:
    return f"""
fn {name}(value: f32, t: u32) -> f32 {{
    workgroupBarrier();
    partial[t] = value;
    for (var half = {LANES // 2}u; half > 0u; half /= 2u) {{
        workgroupBarrier();
        if (t < half) {{ partial[t] = {combine}; }}
    }}
    workgroupBarrier();
    return partial[0];
}}"""


def sum_axis(outer: int, length: int, inner: int, scale: float = 1.0) -> list[Kernel]:
    """y[outer, inner] = scale * sum over the middle axis of x[outer, length, inner].

    Long axes take two launches: slices of the axis are summed first, so that many invocations
    share the work, and then the slices.
    """
    slices = sum_slices(length)
    if slices == 1:
        return [_sum_slices(outer, length, inner, 1, scale)]
    return [
        _sum_slices(outer, length, inner, slices, 1.0),
        _sum_slices(outer, slices, inner, 1, scale),
    ]


def sum_slices(length: int) -> int:
    """How many partial sums an axis is cut into; 1 means a single launch."""
    return 1 if length < 256 else min(ceil(length / 32), 256)


def _sum_slices(outer: int, length: int, inner: int, slices: int, scale: float) -> Kernel:
    """y[outer, slices, inner]: slice s sums elements s, s + slices, ... of the axis."""
    threads = outer * slices * inner
    body = f"""
    let column = i % {inner}u;
    let slice = (i / {inner}u) % {slices}u;
    let base = (i / {inner * slices}u) * {length * inner}u + column;
    var sum = 0.0;
    for (var k = slice; k < {length}u; k += {slices}u) {{ sum += x[base + k * {inner}u]; }}
    y[i] = sum * {f32(scale)};"""
    source = bindings([("x", "f32")], [("y", "f32")]) + linear_main(threads, 64, body)
    return Kernel("sum", source, linear_grid(threads, 64), outer * length * inner)


def softmax(rows: int, columns: int) -> Kernel:
    """y = softmax of each row of x[rows, columns], shifted by the row's maximum."""
    body = f"""
    let base = row * {columns}u;
    var high = -3.0e38;
    for (var j = t; j < {columns}u; j += {LANES}u) {{ high = max(high, x[base + j]); }}
    high = largest(high, t);
    var sum = 0.0;
    for (var j = t; j < {columns}u; j += {LANES}u) {{ sum += exp(x[base + j] - high); }}
    let scale = 1.0 / total(sum, t);
    for (var j = t; j < {columns}u; j += {LANES}u) {{
        y[base + j] = exp(x[base + j] - high) * scale;
    }}"""
    source = bindings([("x", "f32")], [("y", "f32")]) + row_main(rows, body)
    return Kernel("softmax", source, row_grid(rows), 5 * rows * columns)


def softmax_grad(rows: int, columns: int) -> Kernel:
    """dx = y * (g - sum(g * y)) for y = softmax(x) and upstream g, all [rows, columns]."""
    body = f"""
    let base = row * {columns}u;
    var sum = 0.0;
    for (var j = t; j < {columns}u; j += {LANES}u) {{ sum += y[base + j] * g[base + j]; }}
    sum = total(sum, t);
    for (var j = t; j < {columns}u; j += {LANES}u) {{
        dx[base + j] = y[base + j] * (g[base + j] - sum);
    }}"""
    source = bindings([("y", "f32"), ("g", "f32")], [("dx", "f32")]) + row_main(rows, body)
    return Kernel("softmax_grad", source, row_grid(rows), 4 * rows * columns)


STATISTICS = """
    let base = row * {n}u;
    var sum = 0.0;
    for (var j = t; j < {n}u; j += {lanes}u) {{ sum += x[base + j]; }}
    let mean = total(sum, t) * {inverse};
    var squares = 0.0;
    for (var j = t; j < {n}u; j += {lanes}u) {{
        let d = x[base + j] - mean;
        squares += d * d;
    }}
    let inv = inverseSqrt(total(squares, t) * {inverse} + {eps});
"""


def _statistics(columns: int, eps: float) -> str:
    return STATISTICS.format(n=columns, lanes=LANES, inverse=f32(1.0 / columns), eps=f32(eps))


def layer_norm(rows: int, columns: int, eps: float, affine: bool) -> Kernel:
    """y = (x - mean) / sqrt(var + eps), then * w + b if `affine`; x[rows, columns]."""
    value = "(x[base + j] - mean) * inv"
    body = _statistics(columns, eps) + f"""
    for (var j = t; j < {columns}u; j += {LANES}u) {{
        y[base + j] = {value + " * w[j] + b[j]" if affine else value};
    }}"""
    reads = [("x", "f32")] + ([("w", "f32"), ("b", "f32")] if affine else [])
    source = bindings(reads, [("y", "f32")]) + row_main(rows, body)
    return Kernel("layer_norm", source, row_grid(rows), 8 * rows * columns)


def layer_norm_grad(rows: int, columns: int, eps: float) -> Kernel:
    """dx of a normalisation without affine part, from x and upstream g, all [rows, columns].

    dx = inv * (g - mean(g) - xhat * mean(g * xhat)).
    """
    inverse = f32(1.0 / columns)
    body = _statistics(columns, eps) + f"""
    var g_sum = 0.0;
    var gx_sum = 0.0;
    for (var j = t; j < {columns}u; j += {LANES}u) {{
        g_sum += g[base + j];
        gx_sum += g[base + j] * (x[base + j] - mean) * inv;
    }}
    let g_mean = total(g_sum, t) * {inverse};
    let gx_mean = total(gx_sum, t) * {inverse};
    for (var j = t; j < {columns}u; j += {LANES}u) {{
        dx[base + j] = inv * (g[base + j] - g_mean - (x[base + j] - mean) * inv * gx_mean);
    }}"""
    source = bindings([("x", "f32"), ("g", "f32")], [("dx", "f32")]) + row_main(rows, body)
    return Kernel("layer_norm_grad", source, row_grid(rows), 16 * rows * columns)
