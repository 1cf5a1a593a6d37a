"""Matrix products by a device's matrix units: operands rounded to f16, sums in f32.

Rounding keeps 11 significant bits, as TF32 does, but f16 has only five bits of exponent:
derivatives vanish in it, and large values overflow. So each operand is scaled by a power of two
while it is staged (`scaled_f16`), which its first block sets, with much room: nothing is asked of
the others, which would cost a fifth of the time. A sum that is not finite in the end tells of
values that needed more. Then all blocks are looked through for the largest, and the tile is
computed once more.

Subgroups share a tile of the result, and with `slices_k` several subgroups share one part of it,
each taking every so manieth piece of k. Results go through shared memory, so that the guarded,
epilogue-applying store is that of all products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from engine.kernels.product import LANES, Product
from engine.kernels.scaled_f16 import declare, initial, publish, scale, settle, undo
from engine.kernels.wgsl import F16_HEADER, Kernel, entry_point, with_erf
from engine.specialize import F16_PAD, MatmulChoice

TOP = 5
"""Exponent of what the largest values of an operand's first block are scaled to: others may be
2^10 times larger, and lose no bit down to 2^-19 of them."""
INFINITE = "0x7f800000u"
"""Bits of the magnitude of an infinity; of NaN, more."""


@dataclass(frozen=True)
class _Block:
    """One operand's part of a step, staged as it lies in memory: f16 [rows, columns]."""

    name: str
    row: str
    """Where its rows begin, an expression; `column` in vec4."""
    column: str
    rows: int
    columns: int
    along_k: bool
    workgroup: int

    @property
    def stride(self) -> int:
        """Of rows in shared memory."""
        return self.columns + F16_PAD

    @property
    def tasks(self) -> int:
        """Vec4s of a block."""
        return self.rows * self.columns // 4

    def each_task(self, body: str) -> Iterator[str]:
        """`body` for each of the invocation's tasks: {p} is its register, {r} and {q} its row and
        vec4.
        """
        for i, begin in enumerate(range(0, self.tasks, self.workgroup)):
            task, quads = f"(t + {begin}u)", self.columns // 4
            line = body.format(
                p=f"p{self.name}{i}", r=f"({task} / {quads}u)", q=f"({task} % {quads}u)"
            )
            partial = begin + self.workgroup > self.tasks
            yield f"if ({task} < {self.tasks}u) {{ {line} }}" if partial else f"{{ {line} }}"

    @property
    def registers(self) -> list[str]:
        """Names of the vec4s in which an invocation keeps its tasks."""
        return [f"p{self.name}{i}" for i in range(ceil(self.tasks / self.workgroup))]

    def fetch(self) -> Iterator[str]:
        """The block at `k0`, in elements, into registers."""
        name, row, column = self.name, self.row, self.column
        body = f"{{p}} = load_{name}({name}_base, {row} + {{r}}, {column} + {{q}});"
        return self.each_task(body)

    def stage(self) -> Iterator[str]:
        """The registers into shared memory, scaled and rounded."""
        name = self.name
        yield f"let scale_{name} = {scale(name, TOP)};"
        stores = " ".join(f"s{name}[at + {e}u] = h.{lane};" for e, lane in enumerate(LANES))
        yield from self.each_task(
            f"let h = vec4<f16>({{p}} * scale_{name}); "
            f"let at = {{r}} * {self.stride}u + {{q}} * 4u; {stores}"
        )

    def load(self, kind: str, along: str, across: str) -> str:
        """A unit's matrix of type `kind` from shared memory: `along` k and `across` it."""
        row, column = (across, along) if self.along_k else (along, across)
        # Left operands are rows of k, right ones columns.
        turned = self.along_k == (self.name == "b")
        offset = f"({row}) * {self.stride}u + {column}"
        turned_word = "true" if turned else "false"
        return f"subgroupMatrixLoad<{kind}>(&s{self.name}, {offset}, {turned_word}, {self.stride}u)"


def matrix_units(product: Product) -> Kernel:
    """One workgroup per tile of the result and, with split-K, per part of k."""
    s, c = product.shape, product.choice
    assert c.units is not None
    blocks = _blocks(product)
    lines = [
        f"let row0 = workgroup.y * {c.tile_m}u;",
        f"let column0 = workgroup.x * {c.tile_n}u;",
        *_place_of_subgroup(c),
        *product.bases("workgroup.z" if c.split_k == 1 else "0u", "workgroup.z"),
        *product.part_of_k(),
        *(f"var {name} = {_result(c)}();" for name in _accumulators(c)),
        *(f"var {register} = vec4<f32>();" for block in blocks for register in block.registers),
        *initial("ab"),
        "for (var attempt = 0u; attempt < 2u; attempt++) {",
        *_levels(blocks, c),
        "for (var step = first; step < last; step++) {",
        *(line for block in blocks for line in block.stage()),
        "workgroupBarrier();",
        *_fetch("step + 1u", blocks, c),
        *_arithmetic(blocks, c),
        "workgroupBarrier();",
        "}",
        "var largest = vec4<u32>();",
        *_stores(c),
        *_leave_if_finite(),
        *(f"{name} = {_result(c)}();" for name in _accumulators(c)),
        "}",
    ]
    shared = [
        f"var<workgroup> s{block.name}: array<f16, {block.rows * block.stride}>;\n"
        for block in blocks
    ]
    shared += [declare("ab"), f"var<workgroup> results: array<f32, {_results_size(c)}>;\n"]
    source = product.prelude() + "".join(shared) + entry_point(c.workgroup, "\n".join(lines))
    grid = (ceil(s.n / c.tile_n), ceil(s.m / c.tile_m), s.batch if c.split_k == 1 else c.split_k)
    return Kernel(product.label, F16_HEADER + with_erf(source), grid, product.flops)


def _blocks(product: Product) -> tuple[_Block, _Block]:
    s, c = product.shape, product.choice
    sides = (
        ("a", "row0", c.tile_m, not s.transpose_a),
        ("b", "column0", c.tile_n, s.transpose_b),
    )
    a, b = (
        _Block(name, origin, "k0 / 4u", extent, c.tile_k, True, c.workgroup)
        if along_k
        else _Block(name, "k0", f"{origin} / 4u", c.tile_k, extent, False, c.workgroup)
        for name, origin, extent, along_k in sides
    )
    return a, b


def _place_of_subgroup(c: MatmulChoice) -> Iterator[str]:
    """`subgroup`, its number, `row` and `column`, its part of the tile, `slice` of k."""
    assert c.units is not None
    across, parts = c.tile_n // c.thread_n, c.lanes
    yield f"let subgroup = t / {c.units.subgroup_size}u;"
    yield f"let slice = subgroup / {parts}u * {c.units.k}u;"
    yield f"let row = subgroup % {parts}u / {across}u * {c.thread_m}u;"
    yield f"let column = subgroup % {across}u * {c.thread_n}u;"


def _result(c: MatmulChoice) -> str:
    assert c.units is not None
    return f"subgroup_matrix_result<f32, {c.units.n}, {c.units.m}>"


def _accumulators(c: MatmulChoice) -> list[str]:
    """Names of a subgroup's part of the tile in units' matrices: row i, column j."""
    assert c.units is not None
    rows, columns = c.thread_m // c.units.m, c.thread_n // c.units.n
    return [f"c{i}_{j}" for i in range(rows) for j in range(columns)]


def _fetch(step: str, blocks: tuple[_Block, _Block], c: MatmulChoice) -> Iterator[str]:
    """Blocks of a step into registers, if there is such a step."""
    yield f"if ({step} < last) {{"
    yield f"let k0 = ({step}) * {c.tile_k}u;"
    for block in blocks:
        yield from block.fetch()
    yield "}"


def _levels(blocks: tuple[_Block, _Block], c: MatmulChoice) -> Iterator[str]:
    """Levels for the first block, or in a second attempt for all; the first is left fetched."""
    assert c.units is not None
    yield "for (var step = select(first + 1u, last, attempt > 0u); step > first; step--) {"
    yield from _fetch("step - 1u", blocks, c)
    for block in blocks:
        yield from publish(block.name, block.registers, c.units.subgroup_size)
    yield "}"
    yield "workgroupBarrier();"
    yield from settle("ab")


def _leave_if_finite() -> Iterator[str]:
    """End the attempts unless a sum that was stored is an infinity or NaN."""
    yield "let most = max(max(largest.x, largest.y), max(largest.z, largest.w));"
    yield f"if (most >= {INFINITE}) {{ atomicStore(&peak_a[1], 1u); }}"
    yield "if (workgroupUniformLoad(&peak_a[1]) == 0u) { break; }"


def _arithmetic(blocks: tuple[_Block, _Block], c: MatmulChoice) -> Iterator[str]:
    assert c.units is not None
    u, (a, b) = c.units, blocks
    rows, columns = range(c.thread_m // u.m), range(c.thread_n // u.n)
    for begin in range(0, c.tile_k, u.k * c.slices_k):
        yield "{"
        along = f"{begin}u + slice" if c.slices_k > 1 else f"{begin}u"
        for i in rows:
            kind = f"subgroup_matrix_left<f16, {u.k}, {u.m}>"
            yield f"let a{i} = {a.load(kind, along, f'row + {i * u.m}u')};"
        for j in columns:
            kind = f"subgroup_matrix_right<f16, {u.n}, {u.k}>"
            yield f"let b{j} = {b.load(kind, along, f'column + {j * u.n}u')};"
        for i in rows:
            for j in columns:
                yield f"c{i}_{j} = subgroupMatrixMultiplyAccumulate(a{i}, b{j}, c{i}_{j});"
        yield "}"


def _results_size(c: MatmulChoice) -> int:
    """Elements of the shared memory through which results go: a row of units per subgroup."""
    assert c.units is not None
    return c.lanes * c.slices_k * c.units.m * c.thread_n


def _stores(c: MatmulChoice) -> Iterator[str]:
    """All results, a row of every subgroup's units at a time."""
    assert c.units is not None
    u, across, quads = c.units, c.tile_n // c.thread_n, c.tile_n // 4
    yield f"let undo_a = {undo('a', TOP)}; let undo_b = {undo('b', TOP)};"
    part = u.m * c.thread_n
    tasks = c.tile_m // c.thread_m * u.m * quads
    for i in range(c.thread_m // u.m):
        if i:
            yield "workgroupBarrier();"
        for j in range(c.thread_n // u.n):
            at = f"subgroup * {part}u + {j * u.n}u"
            yield f"subgroupMatrixStore(&results, {at}, c{i}_{j}, false, {c.thread_n}u);"
        yield "workgroupBarrier();"
        yield f"for (var task = t; task < {tasks}u; task += {c.workgroup}u) {{"
        yield f"let quad = task % {quads}u; let down = task / {quads}u;"
        yield f"let owner = down / {u.m}u * {across}u + quad / {c.thread_n // 4}u;"
        yield f"let at = owner * {part}u + down % {u.m}u * {c.thread_n}u"
        yield f"    + quad % {c.thread_n // 4}u * 4u;"
        yield "var value = vec4<f32>();"
        for z in range(c.slices_k):
            lanes = (f"results[at + {z * c.lanes * part + e}u]" for e in range(4))
            yield f"value += vec4<f32>({', '.join(lanes)});"
        # Compilers may take for granted that numbers are finite: their bits are not lied about.
        yield "largest = max(largest, bitcast<vec4<u32>>(value) & vec4<u32>(0x7fffffffu));"
        target = f"row0 + down / {u.m}u * {c.thread_m}u + {i * u.m}u + down % {u.m}u"
        yield f"store(y_base, {target}, column0 / 4u + quad, value * undo_a * undo_b);\n}}"
