"""Generators for row-wise kernels: sums, softmax, normalisation and their gradients.

A row kernel gives `lanes` invocations to one row: they stride over it, and a tree in shared memory
combines their partial results in a fixed order, so results are reproducible bit for bit. With one
lane, for CPU devices, an invocation walks its row alone and no barrier is needed.
Roofline: bandwidth; each pass over the row reads it once.
"""

from __future__ import annotations

from math import ceil, log2

from engine.kernels.wgsl import MAX_GRID, Kernel, bindings, f32, linear_grid, linear_main


def row_kernel(label: str, head: str, rows: int, lanes: int, body: str, flops: int) -> Kernel:
    """Kernel whose body sees `row` and lane `t`, and may call total(v, t) and largest(v, t)."""
    if lanes == 1:
        alone = "fn total(v: f32, t: u32) -> f32 { return v; }\n"
        alone += "fn largest(v: f32, t: u32) -> f32 { return v; }\n"
        source = head + alone + linear_main(rows, 64, "    let row = i;\n    let t = 0u;\n" + body)
        return Kernel(label, source, linear_grid(rows, 64), flops)
    folds = ceil(rows / MAX_GRID)
    columns = ceil(rows / folds)
    source = f"""{head}
var<workgroup> partial: array<f32, {lanes}>;
{_tree("total", lanes, "partial[t] + partial[t + half]")}
{_tree("largest", lanes, "max(partial[t], partial[t + half])")}
@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let row = group.x + group.y * {columns}u;
    if (row >= {rows}u) {{ return; }}
{body}
}}
"""
    return Kernel(label, source, (columns, folds, 1), flops)


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
    """How many partial sums an axis is cut into (1: a single launch): about the square root."""
    return 1 if length < 128 else 2 ** round(log2(length) / 2)


UNROLL = 8


def _sum_slices(outer: int, length: int, inner: int, slices: int, scale: float) -> Kernel:
    """y[outer, slices, inner]: slice s sums elements s, s + slices, ... of the axis.

    Several independent partial sums hide the latency of the loads.
    """
    threads = outer * slices * inner
    steps = length // slices
    whole = steps // UNROLL * UNROLL
    stride = slices * inner
    parts = "\n".join(f"        sum{u} += x[at + {u * stride}u];" for u in range(UNROLL))
    declared = "\n".join(f"    var sum{u} = 0.0;" for u in range(UNROLL))
    total = " + ".join(f"sum{u}" for u in range(UNROLL))
    body = f"""
    let column = i % {inner}u;
    let slice = (i / {inner}u) % {slices}u;
    let base = (i / {inner * slices}u) * {length * inner}u + column;
{declared}
    for (var k = 0u; k < {whole}u; k += {UNROLL}u) {{
        let at = base + (slice + k * {slices}u) * {inner}u;
{parts}
    }}
    for (var k = slice + {whole * slices}u; k < {length}u; k += {slices}u) {{
        sum0 += x[base + k * {inner}u];
    }}
    y[i] = ({total}) * {f32(scale)};"""
    source = bindings([("x", "f32")], [("y", "f32")]) + linear_main(threads, 64, body)
    return Kernel("sum", source, linear_grid(threads, 64), outer * length * inner)


def softmax(rows: int, columns: int, lanes: int) -> Kernel:
    """Y = softmax of each row of x[rows, columns], shifted by the row's maximum."""
    body = f"""
    let base = row * {columns}u;
    var high = -3.0e38;
    for (var j = t; j < {columns}u; j += {lanes}u) {{ high = max(high, x[base + j]); }}
    high = largest(high, t);
    var sum = 0.0;
    for (var j = t; j < {columns}u; j += {lanes}u) {{ sum += exp(x[base + j] - high); }}
    let scale = 1.0 / total(sum, t);
    for (var j = t; j < {columns}u; j += {lanes}u) {{
        y[base + j] = exp(x[base + j] - high) * scale;
    }}"""
    head = bindings([("x", "f32")], [("y", "f32")])
    return row_kernel("softmax", head, rows, lanes, body, 5 * rows * columns)


def softmax_grad(rows: int, columns: int, lanes: int) -> Kernel:
    """Dx = y * (g - sum(g * y)) for y = softmax(x) and upstream g, all [rows, columns]."""
    body = f"""
    let base = row * {columns}u;
    var sum = 0.0;
    for (var j = t; j < {columns}u; j += {lanes}u) {{ sum += y[base + j] * g[base + j]; }}
    sum = total(sum, t);
    for (var j = t; j < {columns}u; j += {lanes}u) {{
        dx[base + j] = y[base + j] * (g[base + j] - sum);
    }}"""
    head = bindings([("y", "f32"), ("g", "f32")], [("dx", "f32")])
    return row_kernel("softmax_grad", head, rows, lanes, body, 4 * rows * columns)


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


def _statistics(columns: int, lanes: int, eps: float) -> str:
    return STATISTICS.format(n=columns, lanes=lanes, inverse=f32(1.0 / columns), eps=f32(eps))


def layer_norm(rows: int, columns: int, lanes: int, eps: float, affine: bool) -> Kernel:
    """Y = (x - mean) / sqrt(var + eps), then * w + b if `affine`; x[rows, columns]."""
    value = "(x[base + j] - mean) * inv"
    body = (
        _statistics(columns, lanes, eps)
        + f"""
    for (var j = t; j < {columns}u; j += {lanes}u) {{
        y[base + j] = {value + " * w[j] + b[j]" if affine else value};
    }}"""
    )
    reads = [("x", "f32")] + ([("w", "f32"), ("b", "f32")] if affine else [])
    head = bindings(reads, [("y", "f32")])
    return row_kernel("layer_norm", head, rows, lanes, body, 8 * rows * columns)


def layer_norm_grad(rows: int, columns: int, lanes: int, eps: float) -> Kernel:
    """Dx of a normalisation without affine part, from x and upstream g, all [rows, columns].

    dx = inv * (g - mean(g) - xhat * mean(g * xhat)).
    """
    inverse = f32(1.0 / columns)
    body = (
        _statistics(columns, lanes, eps)
        + f"""
    var g_sum = 0.0;
    var gx_sum = 0.0;
    for (var j = t; j < {columns}u; j += {lanes}u) {{
        g_sum += g[base + j];
        gx_sum += g[base + j] * (x[base + j] - mean) * inv;
    }}
    let g_mean = total(g_sum, t) * {inverse};
    let gx_mean = total(gx_sum, t) * {inverse};
    for (var j = t; j < {columns}u; j += {lanes}u) {{
        dx[base + j] = inv * (g[base + j] - g_mean - (x[base + j] - mean) * inv * gx_mean);
    }}"""
    )
    head = bindings([("x", "f32"), ("g", "f32")], [("dx", "f32")])
    return row_kernel("layer_norm_grad", head, rows, lanes, body, 16 * rows * columns)
