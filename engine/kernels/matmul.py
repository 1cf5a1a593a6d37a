"""Generator for f32 matrix products with transposed operands and an epilogue.

Everything static is unrolled: accumulators are named scalars of vec4<f32>, never an indexed
array, since a dynamically indexed accumulator costs an order of magnitude. Bounds checks are
emitted only for extents that the tile does not divide.

Roofline: 2*M*N*K flops per product; bytes are M*K + K*N + M*N per tile pass. Tiled kernels read
each operand once per tile row or column.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from engine.kernels.epilogue import PLAIN, Epilogue
from engine.kernels.gemv import gemv
from engine.kernels.operands import is_wide
from engine.kernels.product import DENSE, LANES, Access, MatmulShape, Product
from engine.kernels.wgsl import Kernel, bindings, entry_point, linear_grid, linear_main, with_erf
from engine.specialize import MatmulChoice


def matmul(
    shape: MatmulShape, choice: MatmulChoice, epilogue: Epilogue = PLAIN, access: Access = DENSE
) -> list[Kernel]:
    """One kernel, or with split-K two: partial products, then their sum with the epilogue."""
    build = {"direct": _direct, "tiled": _tiled, "gemv": gemv}[choice.variant]
    if choice.split_k == 1:
        return [build(Product(shape, choice, epilogue, access))]
    parts = build(Product(shape, choice, PLAIN, access))
    return [parts, _sum_splits(shape, choice, epilogue)]


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


def _direct(product: Product) -> Kernel:
    s, choice = product.shape, product.choice
    rows, columns = choice.thread_m, choice.thread_n
    across, down = ceil(s.n / columns), ceil(s.m / rows)
    threads = s.batch * down * across
    # Neighbouring invocations take neighbouring rows, so that they share the loads of b.
    lines = [
        f"let row = (i % {down}u) * {rows}u;",
        f"let column = ((i / {down}u) % {across}u) * {columns // 4}u;",
        f"let batch = i / {down * across}u;",
        *product.bases("batch", "batch"),
        *_accumulators(rows, columns),
        f"let steps = {product.steps(4)};",
        "for (var k = 0u; k < steps; k++) {",
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
    source = product.prelude() + linear_main(threads, 64, "\n".join(lines))
    return Kernel(product.label, with_erf(source), linear_grid(threads, 64), product.flops)


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


def _tiled(product: Product) -> Kernel:
    s, c = product.shape, product.choice
    a_stride, b_stride = (c.tile_m + 4) // 4, (c.tile_n + 4) // 4
    across = c.tile_n // c.thread_n
    rows4, columns4 = c.thread_m // 4, c.thread_n // 4
    if s.transpose_a:
        load_a = "load_a(a_base, k0 + {major}, row0 / 4u + {minor})"
    else:
        load_a = "load_a(a_base, row0 + {major}, k0 / 4u + {minor})"
    if s.transpose_b:
        load_b = "load_b(b_base, column0 * 4u + {major}, k0 / 4u + {minor})"
    else:
        load_b = "load_b(b_base, k0 + {major}, column0 + {minor})"
    lines = [
        f"let row0 = workgroup.y * {c.tile_m}u;",
        f"let column0 = workgroup.x * {c.tile_n // 4}u;",
        f"let tx = t % {across}u; let ty = t / {across}u;",
        *product.bases("workgroup.z" if c.split_k == 1 else "0u", "workgroup.z"),
        *_accumulators(c.thread_m, c.thread_n),
    ]
    if c.split_k == 1:
        lines.append(f"let steps = {product.steps(c.tile_k)};")
        lines.append("for (var step = 0u; step < steps; step++) {")
    else:
        last = ceil(s.k / c.tile_k)
        steps = ceil(last / c.split_k)
        lines.append(f"let first = workgroup.z * {steps}u;")
        lines.append(f"let last = min(first + {steps}u, {last}u);")
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
    for i in range(c.thread_m):
        row = f"row0 + {(i // 4) * (c.tile_m // rows4) + i % 4}u + ty * 4u"
        for j in range(columns4):
            column = f"column0 + {j * (c.tile_n // 4 // columns4)}u + tx"
            lines.append(f"store(y_base, {row}, {column}, c{i}_{j});")
    source = (
        product.prelude()
        + f"var<workgroup> sa: array<vec4<f32>, {c.tile_k * a_stride}>;\n"
        + f"var<workgroup> sb: array<vec4<f32>, {c.tile_k * b_stride}>;\n"
        + entry_point(c.workgroup, "\n".join(lines))
    )
    grid = (ceil(s.n / c.tile_n), ceil(s.m / c.tile_m), s.batch if c.split_k == 1 else c.split_k)
    return Kernel(product.label, with_erf(source), grid, product.flops)


def _sum_splits(s: MatmulShape, choice: MatmulChoice, epilogue: Epilogue) -> Kernel:
    wide = is_wide(s.n)
    kind, count = ("vec4<f32>", s.m * s.n // 4) if wide else ("f32", s.m * s.n)
    reads = [("parts", kind), *epilogue.reads(s.n)]
    total = " + ".join(f"parts[i + {z * count}u]" for z in range(choice.split_k))
    lines = [f"let value = {total};", *epilogue.at_index(s.n), "y[i] = out;"]
    source = bindings(reads, [("y", kind)]) + linear_main(count, 64, "\n".join(lines))
    flops = s.m * s.n * choice.split_k
    return Kernel("matmul_sum_splits", with_erf(source), linear_grid(count, 64), flops)
