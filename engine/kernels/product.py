"""What every matrix-product kernel is made of: its shape, its operands, its guarded store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from engine.kernels.epilogue import Epilogue
from engine.kernels.moved import Moved
from engine.kernels.operands import HALVES, Dense, Guard, Reader, Stored, Writer, is_wide
from engine.kernels.wgsl import bindings
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

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """batch, m, n, k."""
        return self.batch, self.m, self.n, self.k

    @property
    def layout(self) -> str:
        """Letter "n" or "t" for each operand."""
        return ("t" if self.transpose_a else "n") + ("t" if self.transpose_b else "n")

    def b(self, stored: Stored = "f32") -> Dense:
        """The right operand as it lies in memory where it is dense."""
        rows, columns = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return Dense(rows, columns, stored)


@dataclass(frozen=True)
class RowNorm:
    """Rows of `a` are divided by sqrt(mean(a^2) + eps), and if `weighted` multiplied by g [k]."""

    eps: float
    weighted: bool


@dataclass(frozen=True)
class Access:
    """Where a kernel's operands and result lie, for products that are not plain matrices.

    None stands for the dense layout that the shape implies. A reader has the memory's own
    orientation: rows along k for a transposed `a` or a plain `b`. Where batches sum over less
    than k, `depth` is WGSL for `depth(a_base)`, and `flops` the arithmetic of all of them; beyond
    its depth, `b` must be zero. Only gemv kernels of a whole k normalise rows. What `moved`
    moves is the whole result as the writer lays it out; the epilogue's operands are not moved.
    """

    name: str = "matmul"
    a: Reader | None = None
    b: Reader | None = None
    y: Writer | None = None
    depth: str = ""
    flops: int = 0
    norm: RowNorm | None = None
    moved: Moved | None = None
    further: tuple[tuple[str, str], ...] = ()
    """Bindings (name, element type) beside a and b, which they are followed by: what a reader needs
    besides, or the norm's g."""


DENSE = Access()


class Product:
    """A product with the readers and the writer that its kernel uses."""

    def __init__(
        self, shape: MatmulShape, choice: MatmulChoice, epilogue: Epilogue, access: Access
    ) -> None:
        s = self.shape = shape
        self.choice, self.epilogue = choice, epilogue
        self.a = access.a or (Dense(s.k, s.m) if s.transpose_a else Dense(s.m, s.k))
        self.b = access.b or s.b()
        # Partial products are dense and belong to splits.
        split = choice.split_k > 1
        self.y = Dense(s.m, s.n) if split or access.y is None else access.y
        self.moved = None if split else access.moved
        suffix = f"_{choice.variant}" if choice.variant in ("gemv", "matrix") else ""
        suffix += f"_split{choice.split_k}" if split else ""
        suffix += "_f16" if self.b.element == HALVES else ""
        suffix += "_moved" if self.moved else ""
        self.label = f"{access.name}_{s.layout}_{s.batch}x{s.m}x{s.n}x{s.k}{suffix}"
        self.flops = access.flops or 2 * s.batch * s.m * s.n * s.k
        self.depth = access.depth
        self.norm, self.further = access.norm, access.further

    def prelude(self) -> str:
        """Bindings, loaders and the guarded, epilogue-applying store."""
        s, choice = self.shape, self.choice
        m: Guard = "" if s.m % choice.tile_m == 0 else "clamp"
        n: Guard = "" if s.n % choice.tile_n == 0 else "clamp"
        # One zero factor is enough where k ends within a step.
        whole_k = s.k % choice.step_k == 0
        k_of_a: Guard = "" if whole_k else "zero"
        k_of_b: Guard = "" if whole_k else "clamp"
        weighted = self.norm is not None and self.norm.weighted
        reads = [("a", self.a.element), ("b", self.b.element), *self.further]
        reads += self.epilogue.reads(s.n)
        return "\n".join(
            [
                bindings(reads, [("y", self.epilogue.result(s.n)[0])]),
                self.a.load("a", *((k_of_a, m) if s.transpose_a else (m, k_of_a))),
                self.b.load("b", *((n, k_of_b) if s.transpose_b else (k_of_b, n))),
                Dense(1, s.k).load("g", "", k_of_b) if weighted else "",
                self.epilogue.loaders(s.n, n),
                self.depth,
                self._store(),
            ]
        )

    def _store(self) -> str:
        s, choice = self.shape, self.choice
        lines = ["fn store(base: u32, row: u32, column: u32, value: vec4<f32>) {"]
        if s.m % choice.tile_m:
            lines.append(f"    if (row >= {s.m}u) {{ return; }}")
        if s.n % choice.tile_n:
            lines.append(f"    if (column * 4u >= {s.n}u) {{ return; }}")
        lines += self.y.locate()
        place = "at + column"
        if self.moved:
            lines.append(f"    let i = {place};")
            lines += self.moved.locate(s.batch * s.m * s.n // 4)
            place = "place"
        lines += self.epilogue.at_column(s.n)
        if is_wide(s.n):
            lines.append(f"    y[{place}] = {self.epilogue.result(s.n)[1]};")
        else:
            for lane in range(4):
                c = f"column * 4u + {lane}u"
                lines.append(f"    if ({c} < {s.n}u) {{ y[at + {c}] = out.{LANES[lane]}; }}")
        return "\n".join([*lines, "}", ""])

    def steps(self, tile_k: int) -> str:
        """Tiles along k: a u32 expression."""
        if self.depth:
            return f"(depth(a_base) + {tile_k - 1}u) / {tile_k}u"
        return f"{ceil(self.shape.k / tile_k)}u"

    def part_of_k(self) -> list[str]:
        """`first` and `last`: the steps along k of a workgroup."""
        c = self.choice
        if c.split_k == 1:
            return [f"let first = 0u; let last = {self.steps(c.tile_k)};"]
        steps = ceil(self.shape.k / c.tile_k)
        share = ceil(steps / c.split_k)
        return [
            f"let first = workgroup.z * {share}u;",
            f"let last = min(first + {share}u, {steps}u);",
        ]

    def bases(self, batch: str, slice_of_y: str) -> list[str]:
        """What the loaders and the store need to know of a batch number."""
        return [
            f"let a_base = {self.a.base(batch)};",
            f"let b_base = {self.b.base(batch)};",
            f"let y_base = {self.y.base(slice_of_y)};",
        ]


def accumulators(rows: int, columns: int) -> Iterator[str]:
    """WGSL declarations of an invocation's tile of the result: c{i}_{j}, row i, vec4 column j."""
    for i in range(rows):
        for j in range(columns // 4):
            yield f"var c{i}_{j} = vec4<f32>();"


def rank_one_update(rows: int, columns: int, a: str, b: str) -> Iterator[str]:
    """WGSL that adds a column times a row to the accumulators.

    `a` and `b` are format templates: of the row {i}, also as {q} and {lane}, and of {j}.
    """
    for i in range(rows):
        for j in range(columns // 4):
            left = a.format(q=i // 4, lane=LANES[i % 4], i=i)
            yield f"c{i}_{j} = fma(vec4<f32>({left}), {b.format(j=j)}, c{i}_{j});"
