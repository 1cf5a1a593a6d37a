"""How a matrix-product kernel reads its operands and places its result.

A reader is a matrix in memory under any index arithmetic: dense, or gathered through the windows
of a convolution. A writer says where each row of the result lies. The generator of
`engine.kernels.matmul` combines them; all constants are folded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Stored = Literal["f32", "f16"]
"""How a matrix's elements lie in memory: f16 in pairs, the first one in the low half of a u32."""
HALVES = "vec2<u32>"
"""WGSL element type of a buffer of f16: four neighbours of a row."""
Guard = Literal["", "clamp", "zero"]
"""Along one axis: cannot be out of bounds, any finite value will do there, or zero is needed."""


def is_wide(extent: int) -> bool:
    """Whether rows of this extent are read and written as vec4<f32>."""
    return extent % 4 == 0


def element(extent: int, stored: Stored = "f32") -> str:
    """WGSL element type of a buffer whose rows have this extent: of f16, they must be wide."""
    if stored == "f16":
        return HALVES
    return "vec4<f32>" if is_wide(extent) else "f32"


def widened(pairs: str) -> str:
    """WGSL for the vec4<f32> of an element of f16; `pairs` names it."""
    return f"vec4<f32>(unpack2x16float({pairs}.x), unpack2x16float({pairs}.y))"


def in_elements(extent: int) -> int:
    """A row's extent counted in elements of its buffer."""
    return extent // 4 if is_wide(extent) else extent


def divided(index: str, by: int) -> str:
    """Quotient of a u32 expression and a constant."""
    return index if by == 1 else f"({index}) / {by}u"


def remainder(index: str, by: int) -> str:
    """Remainder of a u32 expression and a constant."""
    return "0u" if by == 1 else f"({index}) % {by}u"


class Reader(Protocol):
    """An operand matrix; rows are read as vec4 of neighbouring columns."""

    @property
    def element(self) -> str:
        """WGSL element type of the buffer."""

    def base(self, batch: str) -> str:
        """What `load` needs to know of batch number `batch`: a u32 expression."""

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """WGSL `load_NAME(base, row, column)`: columns 4c to 4c + 3 of a row of buffer NAME."""


class Writer(Protocol):
    """Where the rows of a result lie."""

    def base(self, batch: str) -> str:
        """What `locate` needs to know of batch number `batch`: a u32 expression."""

    def locate(self) -> list[str]:
        """WGSL statements that set `at`, where `row` begins, or return if it has no place."""


def gather(
    name: str,
    shape: tuple[int, int],
    guards: tuple[Guard, Guard],
    lines: Sequence[str],
    *,
    wide: bool,
    stored: Stored = "f32",
    inside: str = "",
) -> str:
    """WGSL `load_NAME` for a matrix of `shape` whose offsets are computed.

    `lines` set `at` from base, `r` and `c`, row and column in elements of the buffer, which are
    of four columns if `wide`, as those of f16 must be; where the expression `inside` is false, the
    value is zero. Nothing branches: what is outside reads element 0 and drops it.
    """
    rows, columns = shape
    kind, extent = ("vec4<f32>", columns // 4) if wide else ("f32", columns)
    row_guard, column_guard = guards
    if columns % 4 and column_guard == "":
        column_guard = "clamp"
    tests = [inside] if inside else []
    if row_guard == "zero":
        tests.append(f"row < {rows}u")
    if column_guard == "zero":
        tests.append(f"column < {extent}u")
    body = [
        f"let r = {_bounded('row', rows, row_guard)};",
        f"let c = {_bounded('column', extent, column_guard)};",
        *lines,
    ]
    value = f"{name}[select(0u, at, inside)]" if tests else f"{name}[at]"
    if tests:
        body.append(f"let inside = {' && '.join(tests)};")
    if stored == "f16":
        body.append(f"let pairs = {value};")
        value = widened("pairs")
    body.append(f"return select({kind}(), {value}, inside);" if tests else f"return {value};")
    text = "\n    ".join(body)
    one = f"load_{name}" if wide else f"one_{name}"
    source = f"fn {one}(base: u32, row: u32, column: u32) -> {kind} {{\n    {text}\n}}\n"
    if wide:
        return source
    lanes = ", ".join(f"{one}(base, row, column * 4u + {lane}u)" for lane in range(4))
    return source + (
        f"fn load_{name}(base: u32, row: u32, column: u32) -> vec4<f32> {{\n"
        f"    return vec4<f32>({lanes});\n}}\n"
    )


def _bounded(index: str, extent: int, guard: Guard) -> str:
    return f"min({index}, {extent - 1}u)" if guard == "clamp" else index


@dataclass(frozen=True)
class Dense:
    """Batches of row-major matrices [rows, columns]: reader, and writer of f32."""

    rows: int
    columns: int
    stored: Stored = "f32"

    @property
    def element(self) -> str:
        """See Reader."""
        return element(self.columns, self.stored)

    @property
    def _row(self) -> int:
        return in_elements(self.columns)

    def base(self, batch: str) -> str:
        """See Reader and Writer."""
        return f"{batch} * {self.rows * self._row}u"

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        offset = [f"let at = base + r * {self._row}u + c;"]
        shape, guards = (self.rows, self.columns), (row_guard, column_guard)
        wide = is_wide(self.columns)
        return gather(name, shape, guards, offset, wide=wide, stored=self.stored)

    def locate(self) -> list[str]:
        """See Writer."""
        return [f"let at = base + row * {self._row}u;"]


@dataclass(frozen=True)
class Paired:
    """Rows 4 i to 4 i + 3 are rows 2 i and 2 i + 1 of each half of a matrix [rows, columns]."""

    rows: int
    columns: int
    stored: Stored = "f32"

    @property
    def element(self) -> str:
        """See Reader."""
        return element(self.columns, self.stored)

    def base(self, batch: str) -> str:
        """See Reader; there is one batch."""
        return "0u"

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        lines = [
            f"let own = r / 4u * 2u + r % 2u + (r / 2u) % 2u * {self.rows // 2}u;",
            f"let at = own * {in_elements(self.columns)}u + c;",
        ]
        shape, guards = (self.rows, self.columns), (row_guard, column_guard)
        wide = is_wide(self.columns)
        return gather(name, shape, guards, lines, wide=wide, stored=self.stored)
