"""Matrix products of workgroups that stage blocks of both operands in shared memory.

All invocations share the staging alike, whatever the operands' sizes: a task is a block of 4 x 4
elements, read as four vec4 and, where memory lies along k, transposed on the way. Neighbouring
lanes read neighbouring memory. The next step's blocks are read into registers before the
arithmetic of this one, so that memory is waited for in its shadow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from engine.kernels.product import LANES, Product, accumulators, rank_one_update
from engine.kernels.wgsl import Kernel, entry_point, with_erf
from engine.specialize import MatmulChoice

WORTH_A_BRANCH = 16
"""Most rows of k per row left out: a branch in every step costs about 1 %."""


@dataclass(frozen=True)
class _Block:
    """One operand's part of a step in shared memory: blocks of four rows of vec4s.

    A row is `groups` times `across` vec4: the lanes side by side read one of each group. `skew`
    vec4 lie behind every four rows, so that transposed stores meet different banks.

    The levels are nested arrays: compilers of WGSL clamp indices that are no constants, and so
    these are a lane's own, the same for every step, and the clamps leave the loop.
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

    def read(self, k: int, group: int, lane: str) -> str:
        """A lane's vec4 of row k."""
        return f"s{self.name}[{k // 4}].rows[{k % 4}][{group}][{lane}]"


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
    """A step's rows; those that the last one does without stand under one condition."""
    (a, b), c = blocks, product.choice
    needed = _rows_of_last(product)
    for k in range(c.tile_k):
        if k == needed:
            yield f"if (step + 1u < {product.steps(c.tile_k)}) {{"
        yield "{"
        for q in range(a.groups):
            yield f"let a{q} = {a.read(k, q, 'ty')};"
        for j in range(b.groups):
            yield f"let b{j} = {b.read(k, j, 'tx')};"
        yield from rank_one_update(c.thread_m, c.thread_n, "a{q}.{lane}", "b{j}")
        yield "}"
    if needed < c.tile_k:
        yield "}"


def _rows_of_last(product: Product) -> int:
    """Rows of the last step that are multiplied: fewer where that saves more than a branch costs.

    Of several parts of k the others take as long anyway.
    """
    k, c = product.shape.k, product.choice
    beyond = -k % c.tile_k
    if product.depth or c.split_k > 1 or WORTH_A_BRANCH * beyond < k:
        return c.tile_k
    return c.tile_k - beyond


def _stores(c: MatmulChoice) -> Iterator[str]:
    for i in range(c.thread_m):
        row = f"(row0 + {i // 4 * (c.tile_m // c.thread_m)}u + ty) * 4u + {i % 4}u"
        for j in range(c.thread_n // 4):
            column = f"column0 + {j * (c.tile_n // c.thread_n)}u + tx"
            yield f"store(y_base, {row}, {column}, c{i}_{j});"
