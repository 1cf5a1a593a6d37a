"""Matrix products of workgroups that stage blocks of both operands in shared memory.

All invocations share the staging alike, whatever the operands' sizes: a task is a block of 4 x 4
elements, read as four vec4 and, where memory lies along k, transposed on the way. Neighbouring
lanes read neighbouring memory. The next step's blocks are read into registers before the
arithmetic of this one, so that memory is waited for in its shadow.

The arithmetic stays a loop: unrolled over all rows of a step, a kernel has 10 to 30 KB, which every
multiprocessor reads anew when another kernel ran before, as in a network nearly always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from engine.kernels.product import LANES, Product, accumulators, rank_one_update
from engine.kernels.wgsl import Kernel, entry_point, with_erf
from engine.specialize import MatmulChoice

UNROLLED = 8
"""Rows of k per turn of the innermost loop."""


@dataclass(frozen=True)
class _Block:
    """One operand's part of a step in shared memory: blocks of four rows of vec4s.

    A row is `groups` times `across` vec4: the lanes side by side read one of each group. `skew`
    vec4 lie behind every four rows, so that transposed stores meet different banks.

    The levels are nested arrays: where compilers of WGSL clamp indices that are no constants, those
    of a lane are the same for every step, and their clamps leave the loop.
    """

    name: str
    origin: str
    groups: int
    across: int
    blocks_k: int
    along_k: bool
    skew: int

    @property
    def quads(self) -> int:
        """vec4s of a row."""
        return self.groups * self.across

    @property
    def tasks(self) -> int:
        """Blocks of 4 x 4."""
        return self.quads * self.blocks_k

    def declare(self) -> str:
        """The block's memory."""
        kind = f"Block_{self.name}"
        skew = f", skew: array<vec4<f32>, {self.skew}>" if self.skew else ""
        row = f"array<array<vec4<f32>, {self.across}>, {self.groups}>"
        return (
            f"struct {kind} {{ rows: array<{row}, 4>{skew} }}\n"
            f"var<workgroup> s{self.name}: array<{kind}, {self.blocks_k}>;\n"
        )

    def place(self) -> str:
        """Which block is the task's: lanes run the way that memory lies."""
        fast, slow, extent = ("k4", "q", self.blocks_k) if self.along_k else ("q", "k4", self.quads)
        return f"let {fast} = task % {extent}u; let {slow} = task / {extent}u;"

    def load(self, register: str) -> list[str]:
        """The task's block at `k0`, which counts in vec4, into four registers."""
        across, along = f"({self.origin} + q)", "(k0 + k4)"
        major, minor = (across, along) if self.along_k else (along, across)
        return [
            f"{register}_{e} = load_{self.name}({self.name}_base, {major} * 4u + {e}u, {minor});"
            for e in range(4)
        ]

    def store(self, register: str) -> list[str]:
        """Four registers into the task's rows of shared memory."""
        lines = []
        for e, lane in enumerate(LANES):
            value = f"{register}_{e}"
            if self.along_k:
                value = f"vec4<f32>({', '.join(f'{register}_{r}.{lane}' for r in range(4))})"
            quad = f"[q / {self.across}u][q % {self.across}u]"
            lines.append(f"s{self.name}[k4].rows[{e}]{quad} = {value};")
        return lines

    def read(self, quad: str, row: int, group: int, lane: str) -> str:
        """A lane's vec4 of one of the four rows with number `quad`."""
        return f"s{self.name}[{quad}].rows[{row}][{group}][{lane}]"


def tiled(product: Product) -> Kernel:
    """One workgroup per tile of the result and, with split-K, per part of k."""
    s, c = product.shape, product.choice
    blocks = _blocks(product)
    across = c.tile_n // c.thread_n
    registers = ceil(sum(block.tasks for block in blocks) / c.workgroup)
    lines = [
        f"let row0 = workgroup.y * {c.tile_m // 4}u;",
        f"let column0 = workgroup.x * {c.tile_n // 4}u;",
        f"let tx = t % {across}u; let ty = t / {across}u;",
        *product.bases("workgroup.z" if c.split_k == 1 else "0u", "workgroup.z"),
        *accumulators(c.thread_m, c.thread_n),
        *product.part_of_k(),
        *(f"var p{r}_{e} = vec4<f32>();" for r in range(registers) for e in range(4)),
        *_fetch("first", blocks, c),
        "for (var step = first; step < last; step++) {",
        *_each_task(blocks, c.workgroup, _Block.store),
        "workgroupBarrier();",
        *_fetch("step + 1u", blocks, c),
        *_arithmetic(blocks, product),
        "workgroupBarrier();\n}",
        *_stores(c),
    ]
    shared = "".join(block.declare() for block in blocks)
    source = product.prelude() + shared + entry_point(c.workgroup, "\n".join(lines))
    grid = (ceil(s.n / c.tile_n), ceil(s.m / c.tile_m), s.batch if c.split_k == 1 else c.split_k)
    return Kernel(product.label, with_erf(source), grid, product.flops)


def _blocks(product: Product) -> tuple[_Block, _Block]:
    s, c = product.shape, product.choice
    sides = (
        ("a", "row0", c.tile_m, c.thread_m, not s.transpose_a),
        ("b", "column0", c.tile_n, c.thread_n, s.transpose_b),
    )
    a, b = (
        _Block(
            name,
            origin,
            groups=thread // 4,
            across=extent // thread,
            blocks_k=c.tile_k // 4,
            along_k=along_k,
            skew=c.skew if along_k else 0,
        )
        for name, origin, extent, thread, along_k in sides
    )
    return a, b


def _each_task(
    blocks: tuple[_Block, _Block], workgroup: int, do: Callable[[_Block, str], list[str]]
) -> Iterator[str]:
    """`do` for each of the invocation's tasks: first all those of a, then those of b."""
    cut, total = blocks[0].tasks, blocks[0].tasks + blocks[1].tasks
    for number, begin in enumerate(range(0, total, workgroup)):
        for block, first, end in ((blocks[0], 0, cut), (blocks[1], cut, total)):
            low, high = max(first, begin), min(end, begin + workgroup)
            if low >= high:
                continue
            tests = [f"t >= {low - begin}u"] if low > begin else []
            tests += [f"t < {high - begin}u"] if high < begin + workgroup else []
            yield f"if ({' && '.join(tests)}) {{" if tests else "{"
            offset = begin - first
            yield f"let task = t {'+' if offset >= 0 else '-'} {abs(offset)}u;"
            yield block.place()
            yield from do(block, f"p{number}")
            yield "}"


def _fetch(step: str, blocks: tuple[_Block, _Block], c: MatmulChoice) -> Iterator[str]:
    """Blocks of a step into registers, if there is such a step."""
    yield f"if ({step} < last) {{"
    yield f"let k0 = ({step}) * {c.tile_k // 4}u;"
    yield from _each_task(blocks, c.workgroup, _Block.load)
    yield "}"


def _arithmetic(blocks: tuple[_Block, _Block], product: Product) -> Iterator[str]:
    """A step's rows, some at a time; the last step does without turns beyond k."""
    (a, b), c = blocks, product.choice
    at_once = min(UNROLLED, c.tile_k)
    whole, needed = (ceil(rows / at_once) for rows in (c.tile_k, _rows_of_last(product)))
    # Compilers unroll whatever number of turns they know.
    turns = f"min({whole}u, (last - step) * {whole}u)"
    if needed < whole:
        turns = f"select({whole}u, {needed}u, step + 1u == last)"
    yield f"let turns = {turns};"
    yield "for (var turn = 0u; turn < turns; turn++) {"
    for k in range(at_once):
        quad = f"turn * {at_once // 4}u + {k // 4}u"
        yield "{"
        for q in range(a.groups):
            yield f"let a{q} = {a.read(quad, k % 4, q, 'ty')};"
        for j in range(b.groups):
            yield f"let b{j} = {b.read(quad, k % 4, j, 'tx')};"
        yield from rank_one_update(c.thread_m, c.thread_n, "a{q}.{lane}", "b{j}")
        yield "}"
    yield "}"


def _rows_of_last(product: Product) -> int:
    """Rows of the last step that are multiplied. Of several parts of k the others take as long
    anyway.
    """
    k, c = product.shape.k, product.choice
    if product.depth or c.split_k > 1:
        return c.tile_k
    return c.tile_k - -k % c.tile_k


def _stores(c: MatmulChoice) -> Iterator[str]:
    for i in range(c.thread_m):
        row = f"(row0 + {i // 4 * (c.tile_m // c.thread_m)}u + ty) * 4u + {i % 4}u"
        for j in range(c.thread_n // 4):
            column = f"column0 + {j * (c.tile_n // c.thread_n)}u + tx"
            yield f"store(y_base, {row}, {column}, c{i}_{j});"
