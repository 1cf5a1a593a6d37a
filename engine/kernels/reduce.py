"""Generators for reductions over the middle axis of x[outer, length, inner].

Long axes take two launches: slices of the axis are reduced first, so that many invocations share
the work, and then the slices. The order is fixed, so results are reproducible bit for bit.
Roofline: bandwidth, x is read once.
"""

from __future__ import annotations

from math import log2

from engine.kernels.rows import LOWEST
from engine.kernels.wgsl import Kernel, bindings, f32, linear_grid, linear_main

UNROLL = 8

COMBINE = {"sum": "{a} + {b}", "max": "max({a}, {b})", "min": "min({a}, {b})"}
START = {"sum": "0.0", "max": LOWEST, "min": f"-({LOWEST})"}


def sum_slices(length: int) -> int:
    """How many partial results an axis is cut into (1: a single launch): about the square root."""
    return 1 if length < 128 else 2 ** round(log2(length) / 2)


def reduce_axis(kind: str, outer: int, length: int, inner: int, scale: float = 1.0) -> list[Kernel]:
    """y[outer, inner] = scale * sum, max or min over the middle axis; one kernel or two."""
    slices = sum_slices(length)
    if slices == 1:
        return [_reduce_slices(kind, outer, length, inner, 1, scale)]
    return [
        _reduce_slices(kind, outer, length, inner, slices, 1.0),
        _reduce_slices(kind, outer, slices, inner, 1, scale),
    ]


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
