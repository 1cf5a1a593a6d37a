"""What kernels share that combine the rows of a matrix column by column.

A workgroup owns neighbouring columns; its invocations stride over the rows, and a tree in shared
memory combines their partial results in a fixed order, so results are reproducible bit for bit.
With one lane per column, for CPU devices and short columns, there is no tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from engine.kernels.wgsl import Kernel, entry_point, linear_grid, linear_main
from engine.specialize import ENOUGH_WORKGROUPS

THREADS = 256
LANES = 32
"""Invocations per column: its workgroup owns 8 columns, 32 or 128 neighbouring bytes."""
SIZES = (THREADS, THREADS // 2, THREADS // 4)
"""Of workgroups; the first is the usual one."""
MOST_LANES = 128
"""With 2 columns per workgroup, 16 byte wide ones are still a whole sector of memory."""


def column_lanes(matrices: int, count: int, rows: int) -> int:
    """Invocations per column of `matrices` of `count` columns: more while few workgroups have
    long columns.
    """
    lanes = LANES
    while lanes < MOST_LANES and 2 * lanes <= rows:
        if matrices * ceil(count / (THREADS // lanes)) >= ENOUGH_WORKGROUPS:
            break
        lanes *= 2
    return lanes


@dataclass(frozen=True)
class Columns:
    """`matrices` of `count` columns, in elements of the buffer, each combined over its rows by
    `lanes` invocations.
    """

    matrices: int
    count: int
    lanes: int


def column_kernel(
    label: str,
    head: str,
    over: Columns,
    body: str,
    results: Mapping[str, tuple[str, str, str]],
    flops: int,
) -> Kernel:
    """Kernel whose body sees `matrix`, `column` and `lane`, and declares the `results`.

    Each result has an element type, a format over {a} and {b} that combines two partial ones, and
    a statement over {v} that keeps the combined one; that sees `i`, matrix after matrix.
    """
    c = over
    if c.lanes == 1:
        keep = "\n".join(keep.format(v=name) for name, (_, _, keep) in results.items())
        enter = f"let matrix = i / {c.count}u; let column = i % {c.count}u; let lane = 0u;\n"
        threads = c.matrices * c.count
        source = head + linear_main(threads, 64, f"{enter}{body}\n{keep}")
        return Kernel(label, source, linear_grid(threads, 64), flops)
    made = [
        _workgroups(label, head, over, body, results, flops, threads)
        for threads in SIZES
        if threads >= c.lanes
    ]
    return replace(made[0], resized=tuple(made[1:]))


def _workgroups(
    label: str,
    head: str,
    c: Columns,
    body: str,
    results: Mapping[str, tuple[str, str, str]],
    flops: int,
    threads: int,
) -> Kernel:
    """The kernel with workgroups of so many invocations: how many columns they own, no more,
    depends on it.
    """
    side = threads // c.lanes
    wide = ceil(c.count / side)
    grid = linear_grid(c.matrices * wide, 1)
    # What no column needs is computed for the last one and dropped: barriers stay uniform.
    enter = f"""    let group = workgroup.x + workgroup.y * {grid[0]}u;
    if (group >= {c.matrices * wide}u) {{ return; }}
    let matrix = group / {wide}u;
    let own = group % {wide}u * {side}u + t % {side}u;
    let column = min(own, {c.count - 1}u);
    let lane = t / {side}u;
    let i = matrix * {c.count}u + column;
"""
    shared = "".join(
        f"var<workgroup> all_{name}: array<{kind}, {threads}>;\n"
        for name, (kind, _, _) in results.items()
    )
    lines = [f"all_{name}[t] = {name};" for name in results]
    half = c.lanes // 2
    while half:
        lines += ["workgroupBarrier();", f"if (lane < {half}u) {{"]
        for name, (_, combine, _) in results.items():
            other = f"all_{name}[t + {half * side}u]"
            lines.append(f"all_{name}[t] = {combine.format(a=f'all_{name}[t]', b=other)};")
        lines.append("}")
        half //= 2
    lines.append(f"if (lane > 0u || own >= {c.count}u) {{ return; }}")
    lines += [keep.format(v=f"all_{name}[t]") for name, (_, _, keep) in results.items()]
    tail = "\n".join(lines)
    source = head + shared + entry_point(threads, f"{enter}{body}\n{tail}")
    return Kernel(label, source, grid, flops)
