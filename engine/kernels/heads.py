"""Generators for matrices of tokens whose columns hold heads side by side, [images * tokens, heads
* width]: heads put there from tensors of their own, and rotary positions applied meanwhile.

Roofline: bandwidth, one read and one write per element, two reads where heads are turned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kernels.splits import Given, Splits
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main, with_erf


@dataclass(frozen=True)
class Place:
    """Rows of heads that lie side by side in the `columns` of a matrix [images * rows, columns].

    Head h of an image begins at column start + h * width; all in elements.
    """

    heads: int
    rows: int
    columns: int
    start: int

    def begin(self, head: str, width: int, scale: int) -> str:
        """WGSL for where the first row of a head begins, in elements of `scale` numbers; rows lie
        `columns` apart.
        """
        down = f"{head} / {self.heads}u * {self.rows * self.columns // scale}u"
        return f"{down} + {head} % {self.heads}u * {width // scale}u + {self.start // scale}u"

    def offset(self, row: str, width: int, scale: int) -> str:
        """WGSL for where row number `row` of [images * heads * rows, width] begins, in elements of
        `scale` numbers.
        """
        head = f"{row} / {self.rows}u % {self.heads}u * {width // scale}u"
        down = f"({row} / {self.rows * self.heads}u * {self.rows}u + {row} % {self.rows}u)"
        return f"{down} * {self.columns // scale}u + {head} + {self.start // scale}u"


@dataclass(frozen=True)
class Turn:
    """Rotary positions of the heads in the first `columns` columns; `inverse`: backwards."""

    columns: int
    inverse: bool


@dataclass(frozen=True)
class Tokens:
    """`rows` tokens of all images, `tokens` per image, with heads of `width` columns each."""

    rows: int
    tokens: int
    columns: int
    width: int

    @property
    def scale(self) -> int:
        """Elements of one number, or of four where also the halves of heads are read as vec4."""
        return 4 if self.width % 8 == 0 else 1

    @property
    def kind(self) -> str:
        """WGSL element type of all buffers."""
        return "vec4<f32>" if self.scale == 4 else "f32"


def turned(t: Tokens, turn: Turn, splits: Splits | None) -> Kernel:
    """Y of the shape of x from x, cos and sin [tokens, width / 2].

    With `splits` their operands come in the place of x, which is the first result.
    """
    x = Given("x", t.kind, splits)
    lines = [x.finish("i"), "var value = x[i];", *_turning(t, turn, x, "i")]
    return _kernel("rope", t, [x], lines, turn)


def joined(
    t: Tokens, heads: Sequence[int], turn: Turn | None, splits: Sequence[Splits | None]
) -> Kernel:
    """Y [rows, columns] from parts [images * heads, tokens, width], and cos and sin if `turn`.

    The operands of a part's `splits` come in its place, and the parts that have any are the first
    results.
    """
    parts = [Given(f"x{k}", t.kind, own) for k, own in enumerate(splits)]
    width = t.width // t.scale
    lines = [f"var value = {t.kind}();"]
    start = 0
    for x, count in zip(parts, heads, strict=True):
        head = f"row / {t.tokens}u * {count}u + (column - {start}u) / {width}u"
        lines += [
            f"if (column >= {start}u && column < {start + count * width}u) {{",
            f"let at = (({head}) * {t.tokens}u + row % {t.tokens}u) * {width}u"
            f" + column % {width}u;",
            x.finish("at"),
            f"value = {x.name}[at];",
        ]
        if turn is not None and start * t.scale < turn.columns:
            lines += _turning(t, turn, x, "at")
        lines.append("}")
        start += count * width
    return _kernel("join_heads", t, parts, lines, turn)


def _turning(t: Tokens, turn: Turn, x: Given, at: str) -> list[str]:
    """Turn `value`, element `at` of a buffer: low c - high s, or high c + low s."""
    half = t.width // 2 // t.scale
    sign = "select(1.0, -1.0, upper)" if turn.inverse else "select(-1.0, 1.0, upper)"
    lines = [
        f"let j = column % {2 * half}u;",
        f"let upper = j >= {half}u;",
        f"let angle = row % {t.tokens}u * {half}u + select(j, j - {half}u, upper);",
        f"let opposite = select({at} + {half}u, {at} - {half}u, upper);",
        f"let other = {x.at('opposite')};",
        f"value = value * cosine[angle] + other * sine[angle] * {sign};",
    ]
    if turn.columns == t.columns:
        return lines
    return [f"if (column < {turn.columns // t.scale}u) {{", *lines, "}"]


def _kernel(
    label: str, t: Tokens, parts: Sequence[Given], lines: Sequence[str], turn: Turn | None
) -> Kernel:
    columns = t.columns // t.scale
    count = t.rows * columns
    head = [f"let row = i / {columns}u;", f"let column = i % {columns}u;"]
    reads = [binding for part in parts for binding in part.reads()]
    reads += [("cosine", t.kind), ("sine", t.kind)] if turn else []
    writes = [binding for part in parts for binding in part.writes()]
    source = bindings(reads, [*writes, ("y", t.kind)])
    source += "".join(part.function() for part in parts)
    source += linear_main(count, 64, "\n".join([*head, *lines, "y[i] = value;"]))
    flops = (3 * t.rows * turn.columns if turn else 0) + sum(part.flops for part in parts)
    return Kernel(label, with_erf(source), linear_grid(count, 64), flops)
