"""Generators for reductions over the middle axis of x[outer, length, inner].

Long axes take several invocations per result, in one launch with a tree, or in two: slices of the
axis first, then the slices. The order is fixed, so results are reproducible bit for bit.
Roofline: bandwidth, x is read once.
"""

from __future__ import annotations

from math import ceil, log2

from engine.kernels.columns import LANES, Columns, column_kernel, column_lanes
from engine.kernels.operands import element, in_elements
from engine.kernels.rows import LOWEST
from engine.kernels.wgsl import Kernel, bindings, f32, linear_grid, linear_main

UNROLL = 8
TREE_UNROLL = 4

COMBINE = {"sum": "{a} + {b}", "max": "max({a}, {b})", "min": "min({a}, {b})"}
START = {"sum": "0.0", "max": LOWEST, "min": f"-({LOWEST})"}


MAX_STEPS = 128
"""Elements that an invocation of a tree takes one by one: beyond, two launches are faster."""
SLICE = 64
"""Elements per partial result where a tree adds these up."""


def sum_slices(length: int, *, trees: bool = False) -> int:
    """How many partial results an axis is cut into (1: a single launch): about the square root,
    or with `trees` as many as the second launch takes with ease.
    """
    if length < 128:
        return 1
    if trees:
        return 1 if length <= MAX_STEPS * LANES else min(MAX_STEPS * LANES, ceil(length / SLICE))
    return int(2 ** round(log2(length) / 2))


def reduce_axis(
    kind: str, outer: int, length: int, inner: int, scale: float = 1.0, *, trees: bool = False
) -> list[Kernel]:
    """y[outer, inner] = scale * sum, max or min over the middle axis; one kernel or two.

    `trees`: invocations may meet at barriers, which only GPUs do cheaply.
    """
    slices = sum_slices(length, trees=trees)
    if slices == 1:
        return [_reduce_once(kind, outer, length, inner, scale, trees=trees)]
    return [
        _reduce_slices(kind, outer, length, inner, slices, 1.0),
        _reduce_once(kind, outer, slices, inner, scale, trees=trees),
    ]


def _reduce_once(
    kind: str, outer: int, length: int, inner: int, scale: float, *, trees: bool
) -> Kernel:
    if trees and length >= 128:
        return _reduce_trees(kind, outer, length, inner, scale)
    return _reduce_slices(kind, outer, length, inner, 1, scale)


def _reduce_slices(
    kind: str, outer: int, length: int, inner: int, slices: int, scale: float
) -> Kernel:
    """y[outer, slices, inner]: slice s reduces elements s, s + slices, ... of the axis.

    Several independent partial results hide the latency of the loads.
    """
    threads = outer * slices * inner
    whole = length // slices // UNROLL * UNROLL
    stride = slices * inner

    def combined(a: str, b: str) -> str:
        return COMBINE[kind].format(a=a, b=b)

    parts = "\n".join(
        f"        part{u} = {combined(f'part{u}', f'x[at + {u * stride}u]')};"
        for u in range(UNROLL)
    )
    declared = "\n".join(f"    var part{u} = {START[kind]};" for u in range(UNROLL))
    result = "part0"
    for u in range(1, UNROLL):
        result = combined(result, f"part{u}")
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
        part0 = {combined("part0", f"x[base + k * {inner}u]")};
    }}
    y[i] = ({result}) * {f32(scale)};"""
    source = bindings([("x", "f32")], [("y", "f32")]) + linear_main(threads, 64, body)
    return Kernel(kind, source, linear_grid(threads, 64), outer * length * inner)


def _reduce_trees(kind: str, outer: int, length: int, inner: int, scale: float) -> Kernel:
    """y[outer, inner]: each lane takes elements of the axis, lanes apart, a tree does the rest.

    As in `_reduce_slices`, independent partial results hide the latency of the loads.
    """
    vector, columns = element(inner), in_elements(inner)
    combine, lanes = COMBINE[kind], column_lanes(outer, columns, length)
    start = f"{vector}({START[kind]})"
    at = [f"k + {u * lanes}u" for u in range(TREE_UNROLL)]
    values = [
        f"select({start}, x[base + min({k}, {length - 1}u) * {columns}u], {k} < {length}u)"
        for k in at
    ]
    parts = [f"part{u}" for u in range(TREE_UNROLL)]
    declared = "\n".join(f"    var {part} = {start};" for part in parts)
    steps = "\n".join(
        f"        {part} = {combine.format(a=part, b=value)};"
        for part, value in zip(parts, values, strict=True)
    )
    whole = parts[0]
    for part in parts[1:]:
        whole = combine.format(a=whole, b=part)
    body = f"""
    let base = matrix * {length * columns}u + column;
{declared}
    for (var k = lane; k < {length}u; k += {TREE_UNROLL * lanes}u) {{
{steps}
    }}
    let part = {whole};"""
    results = {"part": (vector, combine, f"y[i] = {{v}} * {f32(scale)};")}
    head = bindings([("x", vector)], [("y", vector)])
    over = Columns(outer, columns, lanes)
    return column_kernel(kind, head, over, body, results, outer * length * inner)


def arg_axis(kind: str, outer: int, length: int, inner: int) -> list[Kernel]:
    """y[outer, inner] (u32) = first index of the max or min on the middle axis; one or two."""
    slices = sum_slices(length)
    if slices == 1:
        return [_arg_slices(kind, outer, length, inner, 1)]
    return [
        _arg_slices(kind, outer, length, inner, slices),
        _arg_candidates(kind, outer, length, inner, slices),
    ]


def _arg_slices(kind: str, outer: int, length: int, inner: int, slices: int) -> Kernel:
    """y[outer, slices, inner]: where the extreme of elements s, s + slices, ... is first found."""
    body = f"""
    let column = i % {inner}u;
    let slice = (i / {inner}u) % {slices}u;
    let base = (i / {inner * slices}u) * {length * inner}u + column;
    var best = slice;
    var value = x[base + slice * {inner}u];
    for (var k = slice + {slices}u; k < {length}u; k += {slices}u) {{
        let v = x[base + k * {inner}u];
        if (v {_BEATS[kind]} value) {{
            value = v;
            best = k;
        }}
    }}
    y[i] = best;"""
    threads = outer * slices * inner
    source = bindings([("x", "f32")], [("y", "u32")]) + linear_main(threads, 64, body)
    return Kernel(f"arg{kind}", source, linear_grid(threads, 64), outer * length * inner)


def _arg_candidates(kind: str, outer: int, length: int, inner: int, slices: int) -> Kernel:
    """The best of the candidates c[outer, slices, inner]; among equals the lowest index."""
    body = f"""
    let column = i % {inner}u;
    let base = (i / {inner}u) * {length * inner}u + column;
    let first = (i / {inner}u) * {slices * inner}u + column;
    var best = c[first];
    var value = x[base + best * {inner}u];
    for (var s = 1u; s < {slices}u; s++) {{
        let k = c[first + s * {inner}u];
        let v = x[base + k * {inner}u];
        if (v {_BEATS[kind]} value || (v == value && k < best)) {{
            value = v;
            best = k;
        }}
    }}
    y[i] = best;"""
    threads = outer * inner
    source = bindings([("x", "f32"), ("c", "u32")], [("y", "u32")])
    source += linear_main(threads, 64, body)
    return Kernel(f"arg{kind}", source, linear_grid(threads, 64), outer * slices * inner)


_BEATS = {"max": ">", "min": "<"}


def put_at(outer: int, length: int, inner: int) -> Kernel:
    """y[outer, length, inner] = g[outer, inner] where the index is at[outer, inner], else 0."""
    count = outer * length * inner
    body = f"""
    let k = (i / {inner}u) % {length}u;
    let column = (i / {length * inner}u) * {inner}u + i % {inner}u;
    y[i] = select(0.0, g[column], at[column] == k);"""
    source = bindings([("at", "u32"), ("g", "f32")], [("y", "f32")]) + linear_main(count, 64, body)
    return Kernel("put_at", source, linear_grid(count, 64))
