"""Generators for optimisers: passes over whole packs of parameters, gradients and moments.

Roofline: bandwidth, each pack read once and each written one written once. Sums of squares are
added up by a fixed number of invocations in a fixed order: the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kernels.wgsl import Kernel, bindings, entry_point, f32, linear_grid, linear_main

VECTOR = "vec4<f32>"
PARTIALS = 4096
"""Invocations that add up squares: enough for the bandwidth of any device."""

FIRST, LAST = 1, 2
"""Bits of hyper[3] in a plan that accumulates: the run starts, or ends, an update's sum."""


@dataclass(frozen=True)
class GradientUse:
    """What an update makes of the gradient before its rule sees it."""

    scale: float = 1.0
    clip: float = 0.0
    """Largest global norm; 0 for no clipping."""
    only_last: bool = False
    """Whether to do nothing in runs without LAST."""
    table: int | None = None
    """Where the pack's multipliers of the rate start in their table, one per 16 vectors."""


def update(label: str, vectors: int, moments: Sequence[str], rule: str, use: GradientUse) -> Kernel:
    """A launch over `vectors` vec4s of a pack. `rule` is WGSL that uses `gradient` and
    `multiplier` to change w[i] and the moments at i.

    Operands: hyper, norm [1] if clipped, multipliers if there is a table, gradients; parameters
    and moments in place.
    """
    reads = [("hyper", "f32")]
    body = ""
    factors = ["g[i]"]
    if use.only_last:
        body += f"    if ((u32(hyper[3]) & {LAST}u) == 0u) {{ return; }}\n"
    if use.scale != 1.0:
        factors.append(f32(use.scale))
    if use.clip:
        reads.append(("norm", "f32"))
        limit = f32(use.clip)
        factors.append(f"select(1.0, {limit} / norm[0], norm[0] > {limit})")
    body += f"    let gradient = {' * '.join(factors)};\n"
    multiplier = "1.0"
    if use.table is not None:
        reads.append(("multipliers", "f32"))
        multiplier = f"multipliers[i / 16u + {use.table}u]"
    body += f"    let multiplier = {multiplier};\n{rule}"
    reads.append(("g", VECTOR))
    writes = [(name, VECTOR) for name in ("w", *moments)]
    source = bindings(reads, writes) + linear_main(vectors, 64, body)
    return Kernel(label, source, linear_grid(vectors, 64), 12 * vectors)


def accumulate(label: str, vectors: int) -> Kernel:
    """Gradients added to totals, or put there in runs with FIRST.

    Operands: hyper, gradients; totals in place.
    """
    body = f"""
    if ((u32(hyper[3]) & {FIRST}u) != 0u) {{
        total[i] = g[i];
    }} else {{
        total[i] += g[i];
    }}"""
    source = bindings([("hyper", "f32"), ("g", VECTOR)], [("total", VECTOR)])
    source += linear_main(vectors, 64, body)
    return Kernel(label, source, linear_grid(vectors, 64), 4 * vectors)


def average(label: str, vectors: int) -> Kernel:
    """Averages moved towards a pack by the share in rate [1].

    Operands: rate, pack; averages in place.
    """
    body = "\n    a[i] += rate[0] * (w[i] - a[i]);"
    source = bindings([("rate", "f32"), ("w", VECTOR)], [("a", VECTOR)])
    source += linear_main(vectors, 64, body)
    return Kernel(label, source, linear_grid(vectors, 64), 12 * vectors)


def sum_squares(label: str, vectors: int, *, chained: bool) -> Kernel:
    """Squares of a pack summed into part [PARTIALS], on top of an earlier part if `chained`.

    Operands: x, the earlier part; part.
    """
    reads = [("x", VECTOR)] + ([("earlier", "f32")] if chained else [])
    body = f"""
    var total = {VECTOR}();
    for (var k = i; k < {vectors}u; k += {PARTIALS}u) {{
        total += x[k] * x[k];
    }}
    part[i] = {"earlier[i]" if chained else "0.0"} + dot(total, {VECTOR}(1.0));"""
    source = bindings(reads, [("part", "f32")]) + linear_main(PARTIALS, 64, body)
    return Kernel(label, source, linear_grid(PARTIALS, 64), 8 * vectors)


def root_of_sum(label: str, scale: float) -> Kernel:
    """The norm: scale * sqrt(sum of part [PARTIALS]), by one workgroup, in y [1]."""
    lanes = 256
    body = f"""
    var total = 0.0;
    for (var k = t; k < {PARTIALS}u; k += {lanes}u) {{ total += part[k]; }}
    shared_sum[t] = total;
    workgroupBarrier();
    for (var half = {lanes // 2}u; half > 0u; half /= 2u) {{
        if (t < half) {{ shared_sum[t] += shared_sum[t + half]; }}
        workgroupBarrier();
    }}
    if (t == 0u) {{ y[0] = {f32(scale)} * sqrt(shared_sum[0]); }}"""
    source = bindings([("part", "f32")], [("y", "f32")])
    source += f"\nvar<workgroup> shared_sum: array<f32, {lanes}>;" + entry_point(lanes, body)
    return Kernel(label, source, (1, 1, 1), 2 * PARTIALS)
