"""Generator for f32 matrix products with transposed operands and an epilogue.

Everything static is unrolled: accumulators are named scalars of vec4<f32>, never an indexed
array, since a dynamically indexed accumulator costs an order of magnitude. Bounds checks are
emitted only for extents that the tile does not divide.

Roofline: 2*M*N*K flops per product; bytes are M*K + K*N + M*N per tile pass. Tiled kernels read
each operand once per tile row or column.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from engine.kernels.epilogue import PLAIN, Epilogue
from engine.kernels.gemv import gemv
from engine.kernels.matrix_units import matrix_units
from engine.kernels.product import (
    DENSE,
    LANES,
    Access,
    MatmulShape,
    Product,
    accumulators,
    rank_one_update,
)
from engine.kernels.splits import Splits
from engine.kernels.tiled import tiled
from engine.kernels.wgsl import Kernel, linear_grid, linear_main, with_erf
from engine.specialize import MatmulChoice


def matmul(
    shape: MatmulShape, choice: MatmulChoice, epilogue: Epilogue = PLAIN, access: Access = DENSE
) -> list[Kernel]:
    """One kernel, or with split-K two: partial products, then their sum with the epilogue."""
    if choice.split_k == 1:
        return [_product(shape, choice, epilogue, access)]
    splits = Splits(choice.split_k, shape.m, shape.n, epilogue, access.moved)
    return [_product(shape, choice, PLAIN, access), splits.kernel()]


@lru_cache(maxsize=512)
def _product(
    shape: MatmulShape, choice: MatmulChoice, epilogue: Epilogue, access: Access
) -> Kernel:
    """Kept, because networks repeat their layers."""
    builders = {"direct": _direct, "tiled": tiled, "gemv": gemv, "matrix": matrix_units}
    return builders[choice.variant](Product(shape, choice, epilogue, access))


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
        *accumulators(rows, columns),
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
        lines += rank_one_update(rows, columns, a, "b{j}")
        lines.append("}")
    lines.append("}")
    lines += [
        f"store(y_base, row + {i}u, column + {j}u, c{i}_{j});"
        for i in range(rows)
        for j in range(columns // 4)
    ]
    source = product.prelude() + linear_main(threads, 64, "\n".join(lines))
    return Kernel(product.label, with_erf(source), linear_grid(threads, 64), product.flops)
