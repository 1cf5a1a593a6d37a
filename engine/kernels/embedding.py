"""Generators that read and add rows of a table by index.

Roofline: bandwidth. The adjoint of reading writes the whole table once and adds without atomics:
each table row follows the list of the positions that read it, in ascending order.
"""

from __future__ import annotations

from engine.kernels.operands import Stored, element, in_elements, widened
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main


def gather(rows: int, width: int, count: int, stored: Stored = "f32") -> Kernel:
    """y[count, width] = x[ids[count]] of x[rows, width]; zeros for an index beyond the table."""
    kind, n = element(width), in_elements(width)
    body = f"""
    let source = ids[i / {n}u];
    if (source < {rows}u) {{
        let row = x[source * {n}u + i % {n}u];
        y[i] = {widened("row") if stored == "f16" else "row"};
    }} else {{
        y[i] = {kind}();
    }}"""
    reads = [("x", element(width, stored)), ("ids", "u32")]
    source = bindings(reads, [("y", kind)]) + linear_main(count * n, 64, body)
    label = "gather_f16" if stored == "f16" else "gather"
    return Kernel(label, source, linear_grid(count * n, 64))


def links(rows: int, count: int) -> Kernel:
    """Lists of equal indices in ids[count]: y[rows + count] holds positions, `count` ends a list.

    y[r] is the first position with index r, y[rows + k] the next after k with the same index.
    """
    body = f"""
    var wanted = i;
    var k = 0u;
    if (i >= {rows}u) {{
        wanted = ids[i - {rows}u];
        k = i - {rows}u + 1u;
    }}
    while (k < {count}u) {{
        if (ids[k] == wanted) {{ break; }}
        k++;
    }}
    y[i] = k;"""
    threads = rows + count
    source = bindings([("ids", "u32")], [("y", "u32")]) + linear_main(threads, 64, body)
    return Kernel("links", source, linear_grid(threads, 64))


def scatter_add(rows: int, width: int, count: int) -> Kernel:
    """y[rows, width] = sums of the rows of x[count, width] that each list of `links` names."""
    kind, n = element(width), in_elements(width)
    body = f"""
    let column = i % {n}u;
    var sum = {kind}();
    var k = next[i / {n}u];
    while (k < {count}u) {{
        sum += x[k * {n}u + column];
        k = next[{rows}u + k];
    }}
    y[i] = sum;"""
    reads = [("x", kind), ("next", "u32")]
    source = bindings(reads, [("y", kind)]) + linear_main(rows * n, 64, body)
    return Kernel("scatter_add", source, linear_grid(rows * n, 64), count * width)
