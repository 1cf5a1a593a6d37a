"""Generators for softmax, its logarithm and their gradients, row by row.

Roofline: bandwidth. Maximum and sum come from one pass over the row; a second one writes.
"""

from __future__ import annotations

from engine.kernels.operands import element, in_elements
from engine.kernels.rows import LOWEST, across, row_kernel
from engine.kernels.wgsl import Kernel, bindings


def log_sum(columns: int, lanes: int) -> str:
    """WGSL that defines `base`, `top` and `whole` for a row of x: the sum of exp(x - top), where
    `top` is the row's maximum. The running sum is rescaled whenever the maximum grows.
    """
    n = in_elements(columns)
    return f"""
    let base = row * {n}u;
    var high = {LOWEST};
    var sum = 0.0;
    for (var j = t; j < {n}u; j += {lanes}u) {{
        let v = x[base + j];
        let higher = max(high, highest(v));
        sum = sum * exp(high - higher) + across(exp(v - higher));
        high = higher;
    }}
    let top = largest(high, t);
    let whole = total(sum * exp(high - top), t);"""


def softmax(rows: int, columns: int, lanes: int, log: bool = False) -> Kernel:
    """y = softmax of each row of x[rows, columns], or its logarithm."""
    kind, n = element(columns), in_elements(columns)
    value = "(x[base + j] - top) - shift" if log else "exp(x[base + j] - top) * scale"
    factor = "let shift = log(whole);" if log else "let scale = 1.0 / whole;"
    body = f"""{log_sum(columns, lanes)}
    {factor}
    for (var j = t; j < {n}u; j += {lanes}u) {{ y[base + j] = {value}; }}"""
    head = bindings([("x", kind)], [("y", kind)]) + across(columns)
    label = "log_softmax" if log else "softmax"
    return row_kernel(label, head, rows, lanes, body, 6 * rows * columns)


def softmax_grad(rows: int, columns: int, lanes: int, log: bool = False) -> Kernel:
    """Dx from the result y and upstream g, all [rows, columns].

    y * (g - sum(g * y)) for y = softmax(x); g - exp(y) * sum(g) for y = log(softmax(x)).
    """
    kind, n = element(columns), in_elements(columns)
    term = "g[base + j]" if log else "y[base + j] * g[base + j]"
    value = "g[base + j] - exp(y[base + j]) * all" if log else "y[base + j] * (g[base + j] - all)"
    body = f"""
    let base = row * {n}u;
    var sum = {kind}();
    for (var j = t; j < {n}u; j += {lanes}u) {{ sum += {term}; }}
    let all = total(across(sum), t);
    for (var j = t; j < {n}u; j += {lanes}u) {{ dx[base + j] = {value}; }}"""
    head = bindings([("y", kind), ("g", kind)], [("dx", kind)]) + across(columns)
    label = "log_softmax_grad" if log else "softmax_grad"
    return row_kernel(label, head, rows, lanes, body, 4 * rows * columns)
