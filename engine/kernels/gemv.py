"""Generator for products of a matrix and few vectors, which memory bandwidth alone bounds.

k is split over the lanes of a workgroup. A lane owns four columns of the result (or four rows,
where the result is a single column), loads the matrix as vec4 along its contiguous axis with its
neighbours next to it, and keeps its sums in registers; a tree in shared memory adds up the lanes in
a fixed order.

Roofline: the matrix is read once: 4*K*N bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from engine.kernels.product import LANES, Product
from engine.kernels.wgsl import Kernel, entry_point, linear_grid, with_erf


def gemv(product: Product) -> Kernel:
    """Kernel for at most four rows of the result, or for its only column."""
    s, c = product.shape, product.choice
    column = c.thread_n == 1
    vectors = 1 if column else c.thread_m
    along_k = not s.transpose_a if column else s.transpose_b
    quads, lanes = ceil((s.m if column else s.n) / 4), c.lanes
    groups = ceil(quads / lanes)
    slices = s.batch if c.split_k == 1 else c.split_k
    grid = linear_grid(groups * slices, 1)
    # Neighbouring invocations read neighbouring vec4s of the matrix.
    lane, slice_k = (
        (f"t / {c.lanes_k}u", f"t % {c.lanes_k}u")
        if along_k
        else (f"t % {lanes}u", f"t / {lanes}u")
    )
    lines = [
        f"let group = workgroup.x + workgroup.y * {grid[0]}u;",
        f"if (group >= {groups * slices}u) {{ return; }}",
        f"let part = group / {groups}u;",
        f"let lane = {lane}; let slice = {slice_k};",
        f"let quad = (group % {groups}u) * {lanes}u + lane;",
        *product.bases("part" if c.split_k == 1 else "0u", "part"),
        *_sums(product, vectors, column, along_k),
        f"let place = slice * {lanes}u + lane;",
    ]
    for v in range(vectors):
        total = _across(v) if along_k else f"c{v}"
        lines.append(f"partial[place + {v * c.workgroup}u] = {total};")
    lines += _tree(vectors, lanes, c.lanes_k, c.workgroup)
    lines.append("if (slice > 0u) { return; }")
    for v in range(vectors):
        lines.append(f"let s{v} = partial[place + {v * c.workgroup}u];")
        if column:
            lines += [
                f"store(y_base, quad * 4u + {e}u, 0u, vec4<f32>(s{v}.{LANES[e]}));"
                for e in range(4)
            ]
        else:
            lines.append(f"store(y_base, {v}u, quad, s{v});")
    body = "\n".join(lines)
    source = f"""{product.prelude()}
var<workgroup> partial: array<vec4<f32>, {vectors * c.workgroup}>;
{entry_point(c.workgroup, body)}"""
    return Kernel(product.label, with_erf(source), grid, product.flops)


def _sums(product: Product, vectors: int, column: bool, along_k: bool) -> Iterator[str]:
    """One lane's share: c{v}_{e}, vec4s along k, or c{v}, vec4s along the lane's quad."""
    c, steps = product.choice, ceil(product.shape.k / 4)
    for v in range(vectors):
        for name in [f"c{v}_{e}" for e in range(4)] if along_k else [f"c{v}"]:
            yield f"var {name} = vec4<f32>();"
    if c.split_k == 1:
        yield f"let first = 0u; let last = {product.steps(4)};"
    else:
        share = ceil(steps / c.split_k)
        yield f"let first = part * {share}u; let last = min(first + {share}u, {steps}u);"
    yield f"for (var k = first + slice; k < last; k += {c.lanes_k}u) {{"
    yield from _vectors(product, vectors, column)
    matrix = "a" if column else "b"
    for e in range(4):
        row, minor = (f"quad * 4u + {e}u", "k") if along_k else (f"k * 4u + {e}u", "quad")
        yield f"let w{e} = load_{matrix}({matrix}_base, {row}, {minor});"
    for v in range(vectors):
        for e in range(4):
            if along_k:
                yield f"c{v}_{e} = fma(x{v}, w{e}, c{v}_{e});"
            else:
                yield f"c{v} = fma(vec4<f32>(x{v}.{LANES[e]}), w{e}, c{v});"
    yield "}"


def _vectors(product: Product, vectors: int, column: bool) -> Iterator[str]:
    """x{v}: four elements along k of each vector."""
    s = product.shape
    name = "b" if column else "a"
    if s.transpose_b if column else not s.transpose_a:
        for v in range(vectors):
            yield f"let x{v} = load_{name}({name}_base, {v}u, k);"
        return
    for e in range(4):
        yield f"let t{e} = load_{name}({name}_base, k * 4u + {e}u, 0u);"
    for v in range(vectors):
        parts = ", ".join(f"t{e}.{LANES[v]}" for e in range(4))
        yield f"let x{v} = vec4<f32>({parts});"


def _across(v: int) -> str:
    """The sums along k of a lane's four columns."""
    sums = (f"dot(c{v}_{e}, vec4<f32>(1.0))" for e in range(4))
    return f"vec4<f32>({', '.join(sums)})"


def _tree(vectors: int, lanes: int, lanes_k: int, workgroup: int) -> Iterator[str]:
    half = lanes_k // 2
    while half:
        yield "workgroupBarrier();"
        yield f"if (slice < {half}u) {{"
        for v in range(vectors):
            mine, other = v * workgroup, v * workgroup + half * lanes
            yield f"partial[place + {mine}u] += partial[place + {other}u];"
        yield "}"
        half //= 2
