"""Generator for products of a matrix and few vectors, which memory bandwidth alone bounds.

k is split over the lanes of a workgroup. A lane owns four columns of the result (or four rows,
where the result is a single column), loads the matrix as vec4 along its contiguous axis with its
neighbours next to it, and keeps its sums in registers; a tree in shared memory adds up the lanes in
a fixed order. Several steps along k are loaded before the first is used: what bounds a small
product is how often it waits for memory.

Where rows are normalised, the lanes add up squares beside the products, and each sum is divided by
the root mean square in the end: the norm costs no pass of its own.

Roofline: the matrix is read once: 4*K*N bytes, half of that as f16.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from engine.kernels.product import LANES, Product
from engine.kernels.wgsl import Kernel, entry_point, f32, linear_grid, with_erf
from engine.specialize import MatmulChoice

STEPS = 8
"""Along k, loaded at a time by a lane."""
FAN_IN = 8
"""Partial sums that one lane of the tree adds up."""


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
    partial = [("partial", "vec4<f32>")]
    partial += [("squares", "f32")] if product.norm else []
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
        if product.norm:
            lines.append(f"squares[place + {v * c.workgroup}u] = q{v};")
    lines += _tree([name for name, _ in partial], vectors, c)
    lines.append("if (slice > 0u) { return; }")
    for v in range(vectors):
        lines.append(f"let s{v} = partial[place + {v * c.workgroup}u]{_divided(product, v)};")
        if column:
            lines += [
                f"store(y_base, quad * 4u + {e}u, 0u, vec4<f32>(s{v}.{LANES[e]}));"
                for e in range(4)
            ]
        else:
            lines.append(f"store(y_base, {v}u, quad, s{v});")
    body = "\n".join(lines)
    shared = "\n".join(
        f"var<workgroup> {name}: array<{kind}, {vectors * c.workgroup}>;" for name, kind in partial
    )
    source = f"{product.prelude()}\n{shared}\n{entry_point(c.workgroup, body)}"
    return Kernel(product.label, with_erf(source), grid, product.flops)


def _sums(product: Product, vectors: int, column: bool, along_k: bool) -> Iterator[str]:
    """One lane's share: c{v}_{e}, vec4s along k, or c{v}, vec4s along the lane's quad; q{v}, the
    sum of squares of a row that is normalised.
    """
    c, steps = product.choice, ceil(product.shape.k / 4)
    for v in range(vectors):
        for name in [f"c{v}_{e}" for e in range(4)] if along_k else [f"c{v}"]:
            yield f"var {name} = vec4<f32>();"
        if product.norm:
            yield f"var q{v} = 0.0;"
    share = ceil(steps / c.split_k)
    if c.split_k == 1:
        yield f"let first = 0u; let last = {steps}u;"
    else:
        yield f"let first = part * {share}u; let last = min(first + {share}u, {steps}u);"
    mine = ceil(share / c.lanes_k)
    rounds = ceil(mine / STEPS)
    at_once = ceil(mine / rounds)
    stride = at_once * c.lanes_k
    whole = c.split_k == 1 and steps % stride == 0
    if rounds > 1:
        yield f"for (var at = first + slice; at < last; at += {stride}u) {{"
    else:
        yield "let at = first + slice;"
    for step in range(at_once):
        inside = whole or (rounds == 1 and c.split_k == 1 and (step + 1) * c.lanes_k <= steps)
        yield f"let k{step} = at + {step * c.lanes_k}u;"
        yield from _loads(product, vectors, column, along_k, step, steps, inside)
    for step in range(at_once):
        yield from _products(product, vectors, along_k, step)
    if rounds > 1:
        yield "}"


def _loads(
    product: Product, vectors: int, column: bool, along_k: bool, step: int, steps: int, inside: bool
) -> Iterator[str]:
    """x{v}_{step}, four elements along k of each vector, and w{e}_{step} of the matrix."""
    # Nothing branches, so that loads need not wait: beyond the end any step is read and dropped.
    k = f"k{step}" if inside else f"min(k{step}, {steps - 1}u)"
    yield from _vectors(product, vectors, column, step, k, inside)
    matrix = "a" if column else "b"
    for e in range(4):
        row, minor = (f"quad * 4u + {e}u", k) if along_k else (f"{k} * 4u + {e}u", "quad")
        yield f"let w{e}_{step} = load_{matrix}({matrix}_base, {row}, {minor});"
    if product.norm and product.norm.weighted:
        yield f"let g_{step} = load_g(0u, 0u, {k});"


def _vectors(
    product: Product, vectors: int, column: bool, step: int, k: str, inside: bool
) -> Iterator[str]:
    s = product.shape
    name = "b" if column else "a"
    loaded = [f"load_{name}({name}_base, {v}u, {k})" for v in range(vectors)]
    if not s.transpose_b if column else s.transpose_a:
        for e in range(4):
            yield f"let t{e}_{step} = load_{name}({name}_base, {k} * 4u + {e}u, 0u);"
        loaded = []
        for v in range(vectors):
            parts = ", ".join(f"t{e}_{step}.{LANES[v]}" for e in range(4))
            loaded.append(f"vec4<f32>({parts})")
    for v, value in enumerate(loaded):
        kept = value if inside else f"select(vec4<f32>(), {value}, k{step} < last)"
        yield f"let x{v}_{step} = {kept};"


def _products(product: Product, vectors: int, along_k: bool, step: int) -> Iterator[str]:
    for v in range(vectors):
        x = f"x{v}_{step}"
        if product.norm:
            yield f"q{v} += dot({x}, {x});"
            if product.norm.weighted:
                yield f"let u{v}_{step} = {x} * g_{step};"
                x = f"u{v}_{step}"
        for e in range(4):
            if along_k:
                yield f"c{v}_{e} = fma({x}, w{e}_{step}, c{v}_{e});"
            else:
                yield f"c{v} = fma(vec4<f32>({x}.{LANES[e]}), w{e}_{step}, c{v});"


def _divided(product: Product, v: int) -> str:
    """What the sum of row v is divided by."""
    if product.norm is None:
        return ""
    mean = f"squares[place + {v * product.choice.workgroup}u] * {f32(1 / product.shape.k)}"
    return f" * inverseSqrt({mean} + {f32(product.norm.eps)})"


def _across(v: int) -> str:
    """The sums along k of a lane's four columns."""
    sums = (f"dot(c{v}_{e}, vec4<f32>(1.0))" for e in range(4))
    return f"vec4<f32>({', '.join(sums)})"


def _tree(names: list[str], vectors: int, c: MatmulChoice) -> Iterator[str]:
    """Sums over the slices, in those of slice 0."""
    count = c.lanes_k
    while count > 1:
        fan_in = min(FAN_IN, count)
        count //= fan_in
        yield "workgroupBarrier();"
        yield f"if (slice < {count}u) {{"
        for name in names:
            for v in range(vectors):
                first = v * c.workgroup
                parts = (f"{name}[place + {first + n * count * c.lanes}u]" for n in range(fan_in))
                yield f"{name}[place + {first}u] = {' + '.join(parts)};"
        yield "}"
