"""Generators for the gradients of the normalisations of `engine.kernels.norm`.

Roofline: bandwidth; x and the upstream gradient are read twice, once from cache.
"""

from __future__ import annotations

from math import ceil, isqrt

from engine.kernels.columns import Columns, column_kernel
from engine.kernels.norm import Cut, Groups, affine_reads, finish, functions, slice_of
from engine.kernels.reduce import MAX_STEPS
from engine.kernels.rows import row_kernel
from engine.kernels.splits import Given, Splits
from engine.kernels.wgsl import Kernel, bindings, f32


def gradient_sums(g: Groups, cut: Cut) -> Kernel:
    """Sums of (g w) and (g w xhat) over each slice: [rows, slices, 2]."""
    body = f"""{slice_of(g, cut)}{_given(g)}{_sums(g, cut, "first + t", "last")}
    if (t == 0u) {{ parts[row] = vec2<f32>(g_sum, gx_sum); }}"""
    reads = [("x", g.element), ("statistics", "vec2<f32>"), ("g", g.element), *affine_reads(g)]
    head = bindings(reads, [("parts", "vec2<f32>")]) + functions(g)
    label = "norm_gradient_sums"
    return row_kernel(label, head, g.rows * cut.slices, cut.lanes, body, 8 * g.rows * g.size)


def normalize_grad(
    label: str, g: Groups, cut: Cut, *, plus: bool, splits: Splits | None = None
) -> Kernel:
    """Dx from x, (mean, 1 / sqrt), upstream g and the affine operands.

    dx = inv * (g w - mean(g w) - xhat * mean(g w xhat)), and one more operand if `plus`; with
    several slices the last operand is what `gradient_sums` wrote. With `splits` their operands
    come in the place of g, which is the first result.
    """
    upstream = Given("g", g.element, splits)
    reads = [("x", g.element), ("statistics", "vec2<f32>"), *upstream.reads(), *affine_reads(g)]
    reads += [("plus", g.element)] if plus else []
    if cut.slices > 1:
        reads.append(("parts", "vec2<f32>"))
        find = f"""
    var pair = vec2<f32>();
    for (var s = t; s < {cut.slices}u; s += {cut.lanes}u) {{
        pair += parts[group * {cut.slices}u + s];
    }}
    let g_sum = total(pair.x, t);
    let gx_sum = total(pair.y, t);"""
    else:
        find = _sums(g, cut, "t", f"{g.steps}u")
    centre = f" - g_sum * {f32(1 / g.size)}" if g.centred else ""
    body = f"""{slice_of(g, cut)}{_given(g)}{finish(upstream, g, cut)}{find}
    let slope = gx_sum * {f32(1 / g.size)};
    for (var j = first + t; j < last; j += {cut.lanes}u) {{
        let at = place(group, j);
        let hat = (x[at] - mean) * inv;
        let own = inv * (weighted(g[at], hat, channel(group, j)){centre} - hat * slope);
        dx[at] = own{" + plus[at]" if plus else ""};
    }}"""
    head = bindings(reads, [*upstream.writes(), ("dx", g.element)])
    head += upstream.function() + functions(g)
    flops = 16 * g.rows * g.size + upstream.flops
    return row_kernel(label, head, g.rows * cut.slices, cut.lanes, body, flops)


def affine_grad_parts(g: Groups, lanes: int) -> int:
    """Slices into which `affine_grad` cuts the positions (pixels of all images)."""
    return ceil(g.images * g.pixels / _positions(g, lanes))


def affine_grad(g: Groups, lanes: int, bias: bool) -> Kernel:
    """Sums over slices of positions: dw [slices, channels] and, if `bias`, db.

    `lanes` invocations per slice and channel element; several slices are then summed by another
    launch.
    """
    positions, own = g.images * g.pixels, _positions(g, lanes)
    channels = g.steps // g.pixels * g.groups
    body = f"""
    let start = matrix * {own}u;
    let stop = min(start + {own}u, {positions}u);
    var dw_sum = {g.element}();
    var db_sum = {g.element}();
    for (var p = start + lane; p < stop; p += {lanes}u) {{
        let at = p * {channels}u + column;
        let known = statistics[p / {g.pixels}u * {g.groups}u + column / {channels // g.groups}u];
        let hat = {"(x[at] - known.x)" if g.centred else "x[at]"} * known.y;
        let through = unfinished(g[at], hat, column);
        dw_sum += through * hat;
        db_sum += through;
    }}"""
    reads = [("x", g.element), ("statistics", "vec2<f32>"), ("g", g.element), *affine_reads(g)]
    names = ["dw", "db"] if bias else ["dw"]
    results = {f"{n}_sum": (g.element, "{a} + {b}", f"{n}[i] = {{v}};") for n in names}
    head = bindings(reads, [(name, g.element) for name in names]) + functions(g)
    over = Columns(affine_grad_parts(g, lanes), channels, lanes)
    return column_kernel("norm_affine_grad", head, over, body, results, 6 * positions * g.channels)


def _positions(g: Groups, lanes: int) -> int:
    """Positions per slice: so many that one is enough, or with one lane about half the square
    root, so that both launches have work.
    """
    positions = g.images * g.pixels
    return MAX_STEPS * lanes if lanes > 1 else max(8, isqrt(positions) // 2)


def _given(g: Groups) -> str:
    return f"""
    let mean = {"statistics[group].x" if g.centred else "0.0"};
    let inv = statistics[group].y;"""


def _sums(g: Groups, cut: Cut, start: str, stop: str) -> str:
    """`g_sum` and `gx_sum` over a range of a group."""
    return f"""
    var g_part = {g.element}();
    var gx_part = {g.element}();
    for (var j = {start}; j < {stop}; j += {cut.lanes}u) {{
        let at = place(group, j);
        let hat = (x[at] - mean) * inv;
        let gw = weighted(g[at], hat, channel(group, j));
        g_part += gw;
        gx_part += gw * hat;
    }}
    let g_sum = total(across(g_part), t);
    let gx_sum = total(across(gx_part), t);"""
