"""Generators for cross-entropy with integer labels.

A row counts when its label is a class and not the ignored one. The gradient is one pass over the
logits after another for their maximum and sum; a tiny launch before it adds up the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.operands import element, in_elements
from engine.kernels.rows import across, row_kernel
from engine.kernels.softmax import log_sum
from engine.kernels.wgsl import Kernel, bindings


@dataclass(frozen=True)
class Labelled:
    """Logits [rows, classes] with labels; `ignored` is -1 for none; `weights` per class or not."""

    rows: int
    classes: int
    ignored: int
    weights: bool

    @property
    def operands(self) -> list[tuple[str, str]]:
        """Bindings of what follows the logits."""
        return [("labels", "u32"), *([("weights", "f32")] if self.weights else [])]

    @property
    def functions(self) -> str:
        """`weight_of(label)`, 0 for a row that does not count."""
        ignored = f" || label == {self.ignored}u" if self.ignored >= 0 else ""
        return f"""
fn weight_of(label: u32) -> f32 {{
    if (label >= {self.classes}u{ignored}) {{ return 0.0; }}
    return {"weights[label]" if self.weights else "1.0"};
}}
"""


def row_losses(s: Labelled, lanes: int) -> Kernel:
    """y[rows] = (weight * -log softmax(x)[label], weight)."""
    wide = element(s.classes) != "f32"
    logit = "x[base + label / 4u][label % 4u]" if wide else "x[base + label]"
    body = f"""{log_sum(s.classes, lanes)}
    if (t == 0u) {{
        let label = labels[row];
        let weight = weight_of(label);
        var loss = 0.0;
        if (weight > 0.0) {{ loss = weight * ((top - {logit}) + log(whole)); }}
        y[row] = vec2<f32>(loss, weight);
    }}"""
    reads = [("x", element(s.classes)), *s.operands]
    head = bindings(reads, [("y", "vec2<f32>")]) + s.functions + across(s.classes)
    return row_kernel("row_losses", head, s.rows, lanes, body, 5 * s.rows * s.classes)


def weighted_mean(rows: int, lanes: int) -> Kernel:
    """y = sum of the losses over sum of the weights of x[rows]; 0 when no row counts."""
    body = f"""
    var sum = vec2<f32>();
    for (var j = t; j < {rows}u; j += {lanes}u) {{ sum += x[j]; }}
    let loss = total(sum.x, t);
    let weight = total(sum.y, t);
    if (t == 0u) {{
        y[0] = 0.0;
        if (weight > 0.0) {{ y[0] = loss / weight; }}
    }}"""
    head = bindings([("x", "vec2<f32>")], [("y", "f32")])
    return row_kernel("weighted_mean", head, 1, lanes, body, 2 * rows)


def weight_sum(s: Labelled, lanes: int) -> Kernel:
    """y = sum of the weights of all rows that count."""
    body = f"""
    var sum = 0.0;
    for (var j = t; j < {s.rows}u; j += {lanes}u) {{ sum += weight_of(labels[j]); }}
    let weight = total(sum, t);
    if (t == 0u) {{ y[0] = weight; }}"""
    head = bindings(s.operands, [("y", "f32")]) + s.functions
    return row_kernel("weight_sum", head, 1, lanes, body, s.rows)


def cross_entropy_grad(s: Labelled, lanes: int) -> Kernel:
    """dx = (softmax(x) - onehot(label)) * weight / weight sum * upstream.

    Operands: logits, labels, perhaps weights, upstream [1], weight sum [1].
    """
    kind, n = element(s.classes), in_elements(s.classes)
    wide = kind != "f32"
    is_label = "j == label / 4u" if wide else "j == label"
    entry = "d[label % 4u]" if wide else "d"
    body = f"""{log_sum(s.classes, lanes)}
    let label = labels[row];
    let weight = weight_of(label);
    var slope = 0.0;
    if (weight > 0.0) {{ slope = weight / weights_total[0] * upstream[0]; }}
    for (var j = t; j < {n}u; j += {lanes}u) {{
        var d = exp(x[base + j] - top) * (slope / whole);
        if ({is_label}) {{ {entry} -= slope; }}
        dx[base + j] = d;
    }}"""
    reads = [("x", kind), *s.operands, ("upstream", "f32"), ("weights_total", "f32")]
    head = bindings(reads, [("dx", kind)]) + s.functions + across(s.classes)
    return row_kernel("cross_entropy_grad", head, s.rows, lanes, body, 7 * s.rows * s.classes)
