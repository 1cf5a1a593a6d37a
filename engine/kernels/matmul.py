"""Generator for f32 matrix products with transposed operands, bias and activation.

Everything static is unrolled: accumulators are named scalars of vec4<f32>, never an indexed
array, since a dynamically indexed accumulator costs an order of magnitude. Bounds checks are
emitted only for extents that the tile does not divide.

Roofline: 2*M*N*K flops per product; bytes are M*K + K*N + M*N per tile pass. Tiled kernels read
each operand once per tile row or column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main, with_erf
from engine.specialize import MatmulChoice

LANES = "xyzw"


@dataclass(frozen=True)
class MatmulShape:
    """`batch` products y = op(a) op(b) of result shape [m, n] over k."""

    batch: int
    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    bias: bool = False


def matmul(shape: MatmulShape, choice: MatmulChoice, activation: str = "{v}") -> list[Kernel]:
    """One kernel, or with split-K two: partial products, then their sum with the epilogue.

    `activation` is a WGSL template over a vec4<f32> `{v}`.
    """
    build = _direct if choice.variant == "direct" else _tiled
    if choice.split_k == 1:
        return [build(shape, choice, activation)]
    return [build(shape, choice, "{v}"), _sum_splits(shape, choice, activation)]


def _wide(extent: int) -> bool:
    return extent % 4 == 0


def _element(extent: int) -> str:
    return "vec4<f32>" if _wide(extent) else "f32"


def _loader(name: str, rows: int, columns: int, row_guard: str, column_guard: str) -> str:
    """WGSL `load_name(base, r, c)`: columns 4c..4c+3 of row r, at offset `base` of the buffer.

    A guard is "" (cannot be out of bounds), "clamp" (any value will do) or "zero".
    """
    body = []
    if row_guard == "zero":
        body.append(f"if (row >= {rows}u) {{ return vec4<f32>(); }}")
    row = f"min(row, {rows - 1}u)" if row_guard == "clamp" else "row"
    if _wide(columns):
        quarter = columns // 4
        if column_guard == "zero":
            body.append(f"if (column >= {quarter}u) {{ return vec4<f32>(); }}")
        column = f"min(column, {quarter - 1}u)" if column_guard == "clamp" else "column"
        body.append(f"return {name}[base + {row} * {quarter}u + {column}];")
    else:
        parts = []
        for lane in range(4):
            at = f"(column * 4u + {lane}u)"
            value = f"{name}[base + {row} * {columns}u + min({at}, {columns - 1}u)]"
            parts.append(
                f"select(0.0, {value}, {at} < {columns}u)" if column_guard == "zero" else value
            )
        body.append(f"return vec4<f32>({', '.join(parts)});")
    lines = "\n    ".join(body)
    return f"fn load_{name}(base: u32, row: u32, column: u32) -> vec4<f32> {{\n    {lines}\n}}\n"


def _prelude(shape: MatmulShape, choice: MatmulChoice, activation: str) -> str:
    """Bindings, loaders and the guarded, epilogue-applying store."""
    s = shape
    whole_k = s.k % choice.tile_k == 0
    m_guard = "" if s.m % choice.tile_m == 0 else "clamp"
    n_guard = "" if s.n % choice.tile_n == 0 else "clamp"
    k_zero, k_clamp = ("", "") if whole_k else ("zero", "clamp")
    a_columns, b_columns = (s.m if s.transpose_a else s.k), (s.k if s.transpose_b else s.n)
    bias = s.bias and choice.split_k == 1
    reads = [("a", _element(a_columns)), ("b", _element(b_columns))]
    if bias:
        reads.append(("bias", _element(s.n)))
    text = bindings(reads, [("y", _element(s.n))]) + "\n"
    if s.transpose_a:
        text += _loader("a", s.k, s.m, k_zero, m_guard)
    else:
        text += _loader("a", s.m, s.k, m_guard, k_zero)
    if s.transpose_b:
        text += _loader("b", s.n, s.k, n_guard, k_clamp)
    else:
        text += _loader("b", s.k, s.n, k_clamp, n_guard)
    if bias:
        text += _loader("bias", 1, s.n, "", n_guard)
    return text + _store(s, choice, activation, bias)


def _store(s: MatmulShape, choice: MatmulChoice, activation: str, bias: bool) -> str:
    lines = ["fn store(base: u32, row: u32, column: u32, value: vec4<f32>) {"]
    if s.m % choice.tile_m:
        lines.append(f"    if (row >= {s.m}u) {{ return; }}")
    if s.n % choice.tile_n:
        lines.append(f"    if (column * 4u >= {s.n}u) {{ return; }}")
    added = "value + load_bias(0u, 0u, column)" if bias else "value"
    lines.append(f"    let v = {added};")
    lines.append(f"    let out = {activation.format(v='v')};")
    if _wide(s.n):
        lines.append(f"    y[base + row * {s.n // 4}u + column] = out;")
    else:
        for lane in range(4):
            at = f"column * 4u + {lane}u"
            lines.append(
                f"    if ({at} < {s.n}u) {{ y[base + row * {s.n}u + {at}] = out.{LANES[lane]}; }}"
            )
    return "\n".join([*lines, "}", ""])


def _bases(s: MatmulShape, batch: str) -> list[str]:
    """Offsets of batch number `batch` in the three buffers, in their element types."""
    a_size = s.m * s.k // (4 if _wide(s.m if s.transpose_a else s.k) else 1)
    b_size = s.k * s.n // (4 if _wide(s.k if s.transpose_b else s.n) else 1)
    y_size = s.m * s.n // (4 if _wide(s.n) else 1)
    return [
        f"let a_base = {batch} * {a_size}u;",
        f"let b_base = {batch} * {b_size}u;",
        f"let y_base = {batch} * {y_size}u;",
    ]


def _accumulators(rows: int, columns: int) -> Iterator[str]:
    for i in range(rows):
        for j in range(columns // 4):
            yield f"var c{i}_{j} = vec4<f32>();"


def _fma(rows: int, columns: int, a: str, b: str) -> Iterator[str]:
    """Rank-1 update; `a` and `b` are format templates over the row i and the vector column j."""
    for i in range(rows):
        for j in range(columns // 4):
            left = a.format(q=i // 4, lane=LANES[i % 4], i=i)
            yield f"c{i}_{j} = fma(vec4<f32>({left}), {b.format(j=j)}, c{i}_{j});"


def _direct(s: MatmulShape, choice: MatmulChoice, activation: str) -> Kernel:
    rows, columns = choice.thread_m, choice.thread_n
    across, down = ceil(s.n / columns), ceil(s.m / rows)
    threads = s.batch * down * across
    # Neighbouring invocations take neighbouring rows, so that they share the loads of b.
    lines = [
        f"let row = (i % {down}u) * {rows}u;",
        f"let column = ((i / {down}u) % {across}u) * {columns // 4}u;",
        f"let batch = i / {down * across}u;",
        *_bases(s, "batch"),
        *_accumulators(rows, columns),
        f"for (var k = 0u; k < {ceil(s.k / 4)}u; k++) {{",
    ]
    if not s.transpose_a:
        lines += [f"let a{i} = load_a(a_base, row + {i}u, k);" for i in range(rows)]
    if s.transpose_b:
        lines += [f"let t{n} = load_b(b_base, column * 4u + {n}u, k);" for n in range(columns)]
    for kk in range(4):
        lines.append("{")
        if s.transpose_a:
            lines += [
                f"let a{q} = load_a(a_base, k * 4u + {kk}u, row / 4u + {q}u);"
                for q in range(rows // 4)
            ]
            a = "a{q}.{lane}"
        else:
            a = "a{i}." + LANES[kk]
        for j in range(columns // 4):
            if s.transpose_b:
                parts = ", ".join(f"t{4 * j + e}.{LANES[kk]}" for e in range(4))
                lines.append(f"let b{j} = vec4<f32>({parts});")
            else:
                lines.append(f"let b{j} = load_b(b_base, k * 4u + {kk}u, column + {j}u);")
        lines += _fma(rows, columns, a, "b{j}")
        lines.append("}")
    lines.append("}")
    lines += [
        f"store(y_base, row + {i}u, column + {j}u, c{i}_{j});"
        for i in range(rows)
        for j in range(columns // 4)
    ]
    source = _prelude(s, choice, activation) + linear_main(threads, 64, "\n".join(lines))
    return Kernel(_label(s, choice), with_erf(source), linear_grid(threads, 64), _flops(s))


def _stage(shared: str, load: str, along_k: bool, extent: int, choice: MatmulChoice) -> list[str]:
    """Copy one operand block to shared memory as [k][extent] vectors along the extent.

    `along_k` says that memory is contiguous along k, so that four vectors are transposed.
    `load` is a template over the block-relative {major} (row) and {minor} (vector column).
    """
    stride = (extent + 4) // 4
    tasks = extent * choice.tile_k // (16 if along_k else 4)
    threads = choice.workgroup
    lines = []
    for repeat in range(ceil(tasks / threads)):
        first = repeat * threads
        partial = first + threads > tasks
        lines.append(
            f"{'if (t + ' + str(first) + 'u < ' + str(tasks) + 'u) ' if partial else ''}{{"
        )
        lines.append(f"let task = t + {first}u;")
        if along_k:
            # Lanes run along the extent: their transposed stores hit different banks.
            lines.append(f"let q = task % {extent // 4}u; let k4 = task / {extent // 4}u;")
            for e in range(4):
                lines.append(f"let v{e} = {load.format(major=f'q * 4u + {e}u', minor='k4')};")
            for e, lane in enumerate(LANES):
                column = ", ".join(f"v{r}.{lane}" for r in range(4))
                lines.append(f"{shared}[(k4 * 4u + {e}u) * {stride}u + q] = vec4<f32>({column});")
        else:
            lines.append(f"let q = task % {extent // 4}u; let r = task / {extent // 4}u;")
            lines.append(f"{shared}[r * {stride}u + q] = {load.format(major='r', minor='q')};")
        lines.append("}")
    return lines


def _tiled(s: MatmulShape, choice: MatmulChoice, activation: str) -> Kernel:
    c = choice
    a_stride, b_stride = (c.tile_m + 4) // 4, (c.tile_n + 4) // 4
    across = c.tile_n // c.thread_n
    rows4, columns4 = c.thread_m // 4, c.thread_n // 4
    steps = ceil(ceil(s.k / c.tile_k) / c.split_k)
    if s.transpose_a:
        load_a = "load_a(a_base, k0 + {major}, row0 / 4u + {minor})"
    else:
        load_a = "load_a(a_base, row0 + {major}, k0 / 4u + {minor})"
    if s.transpose_b:
        load_b = "load_b(b_base, column0 * 4u + {major}, k0 / 4u + {minor})"
    else:
        load_b = "load_b(b_base, k0 + {major}, column0 + {minor})"
    batch = "group.z" if c.split_k == 1 else "0u"
    lines = [
        f"let row0 = group.y * {c.tile_m}u;",
        f"let column0 = group.x * {c.tile_n // 4}u;",
        f"let tx = t % {across}u; let ty = t / {across}u;",
        *_bases(s, batch),
        *_accumulators(c.thread_m, c.thread_n),
    ]
    if c.split_k == 1:
        lines.append(f"for (var step = 0u; step < {steps}u; step++) {{")
    else:
        last = ceil(s.k / c.tile_k)
        lines.append(f"let first = group.z * {steps}u; let last = min(first + {steps}u, {last}u);")
        lines.append("for (var step = first; step < last; step++) {")
    lines.append(f"let k0 = step * {c.tile_k}u;")
    lines += _stage("sa", load_a, not s.transpose_a, c.tile_m, c)
    lines += _stage("sb", load_b, s.transpose_b, c.tile_n, c)
    lines.append("workgroupBarrier();")
    for k in range(c.tile_k):
        lines.append("{")
        for q in range(rows4):
            lines.append(f"let a{q} = sa[{k * a_stride + q * (c.tile_m // 4 // rows4)}u + ty];")
        for j in range(columns4):
            lines.append(f"let b{j} = sb[{k * b_stride + j * (c.tile_n // 4 // columns4)}u + tx];")
        lines += _fma(c.thread_m, c.thread_n, "a{q}.{lane}", "b{j}")
        lines.append("}")
    lines.append("workgroupBarrier();\n}")
    out = "y_base" if c.split_k == 1 else f"group.z * {s.m * s.n // (4 if _wide(s.n) else 1)}u"
    for i in range(c.thread_m):
        row = f"row0 + {(i // 4) * (c.tile_m // rows4) + i % 4}u + ty * 4u"
        for j in range(columns4):
            column = f"column0 + {j * (c.tile_n // 4 // columns4)}u + tx"
            lines.append(f"store({out}, {row}, {column}, c{i}_{j});")
    body = "\n".join(lines)
    source = (
        _prelude(s, c, activation)
        + f"var<workgroup> sa: array<vec4<f32>, {c.tile_k * a_stride}>;\n"
        + f"var<workgroup> sb: array<vec4<f32>, {c.tile_k * b_stride}>;\n"
        + f"""@compute @workgroup_size({c.workgroup})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
{body}
}}
"""
    )
    grid = (ceil(s.n / c.tile_n), ceil(s.m / c.tile_m), s.batch if c.split_k == 1 else c.split_k)
    return Kernel(_label(s, c), with_erf(source), grid, _flops(s))


def _sum_splits(s: MatmulShape, choice: MatmulChoice, activation: str) -> Kernel:
    wide = _wide(s.n)
    kind, count = ("vec4<f32>", s.m * s.n // 4) if wide else ("f32", s.m * s.n)
    columns = s.n // 4 if wide else s.n
    reads = [("parts", kind)] + ([("bias", kind)] if s.bias else [])
    total = " + ".join(f"parts[i + {z * count}u]" for z in range(choice.split_k))
    if s.bias:
        total += f" + bias[i % {columns}u]"
    value = activation.format(v="v") if wide else f"({activation.format(v='vec4<f32>(v)')}).x"
    body = f"    let v = {total};\n    y[i] = {value};"
    source = bindings(reads, [("y", kind)]) + linear_main(count, 64, body)
    flops = s.m * s.n * choice.split_k
    return Kernel("matmul_sum_splits", with_erf(source), linear_grid(count, 64), flops)


def _label(s: MatmulShape, choice: MatmulChoice) -> str:
    layout = ("t" if s.transpose_a else "n") + ("t" if s.transpose_b else "n")
    split = f"_split{choice.split_k}" if choice.split_k > 1 else ""
    return f"matmul_{layout}_{s.batch}x{s.m}x{s.n}x{s.k}{split}"


def _flops(s: MatmulShape) -> int:
    return 2 * s.batch * s.m * s.n * s.k
