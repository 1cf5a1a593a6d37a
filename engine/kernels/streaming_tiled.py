"""Streaming rows through shared memory, past workgroups that own a block of rows; for GPUs.

A workgroup stages blocks of `columns` streamed rows, `slice` elements of the width at a time. Of
its invocations, `lanes` share four owned rows: each holds the scores of these with every
`lanes`-th streamed row, as one vec4 over its own rows per streamed row, and the accumulators of
every `lanes`-th quad. Neighbouring invocations have neighbouring rows and read different banks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, log2

from engine.kernels.streaming import (
    LANES,
    Stream,
    assemble,
    own_rows,
    scale_and_mask,
    store_lse,
    streamed_vectors,
    weights,
)
from engine.kernels.wgsl import Kernel
from engine.specialize_attention import AttentionChoice, odd, slice_quads


def tiled(s: Stream, choice: AttentionChoice) -> Kernel:
    """The kernel by this way."""
    made = Tiled(s, choice)
    return assemble(s, choice, made.lines(), made.shared())


def _steps(name: str, extent: int, step: int) -> str:
    """The head of a loop, or of a block if there is a single step."""
    if extent == step:
        return f"{{ let {name} = 0u;"
    return f"for (var {name} = 0u; {name} < {extent}u; {name} += {step}u) {{"


def _unrolled(count: int, body: Callable[[str], list[str]]) -> list[str]:
    """A loop over `count` steps, up to four of them at a time; the body is given WGSL for one."""
    each = next(n for n in (4, 2, 1) if count % n == 0)
    lines = [f"for (var k = 0u; k < {count}u; k += {each}u) {{"]
    for u in range(each):
        lines += ["{", *body(f"(k + {u}u)"), "}"]
    return [*lines, "}"]


class Tiled:
    """Writes the kernel; invocation (tx, ty) owns rows ty, ty + height, .. of the workgroup."""

    def __init__(self, s: Stream, choice: AttentionChoice) -> None:
        self.s, self.choice = s, choice
        self.quads = s.over.quads
        self.part = slice_quads(s.over.width, choice.slice)
        self.slices = ceil(self.quads / self.part)
        self.height = choice.rows // 4
        self.each = choice.columns // choice.lanes
        """Streamed rows per invocation."""
        self.own_quads = ceil(self.quads / choice.lanes)
        self.stride, self.part_stride = odd(self.quads), odd(self.part)
        staged = choice.columns * self.part_stride
        # Rows are summed whole: as many at a time as there is room for.
        self.chunk = min(choice.columns, 1 << max(1, staged // self.stride).bit_length() - 1)
        self.staged = max(staged, self.chunk * self.stride)

    def shared(self) -> str:
        """Declarations of shared memory."""
        choice = self.choice
        arrays = {"streamed_tile": self.staged, "weight_tile": choice.columns * choice.stride}
        if choice.resident:
            arrays |= {f"own_{name}": choice.rows * self.stride for name in self._owned()}
        else:
            arrays["owned_tile"] = choice.rows * self.part_stride
        if self.s.softmax:
            arrays["partial"] = choice.workgroup
        return "".join(
            f"var<workgroup> {name}: array<vec4<f32>, {size}>;\n" for name, size in arrays.items()
        )

    def lines(self) -> list[str]:
        """The body of the entry point."""
        s, lanes = self.s, self.choice.lanes
        below = ", ".join(f"{i * self.height}u" for i in range(4))
        lines = [
            *self._places(),
            *own_rows(s, f"row0 + ty + vec4<u32>({below})"),
            *(
                f"let column{j} = min(tx + {j * lanes}u, {self.quads - 1}u);"
                for j in range(self.own_quads)
            ),
        ]
        lines += [f"var {name} = vec4<f32>();" for name, *_ in self._accumulators()]
        if self.choice.resident:
            for name in self._owned():
                lines += self._stage_owned(name, f"own_{name}", self.quads, "0u")
        body = []
        for c in range(self.each):
            body.append(f"let n{c} = block + tx + {c * lanes}u;")
            body.append(f"let at{c} = min(n{c}, {s.over.others - 1}u);")
        body += streamed_vectors(s, self.each)
        for score, owned, streamed in s.products:
            body += self._product(score, owned, streamed)
        body += [scale_and_mask(s, self.choice, c) for c in range(self.each)]
        body += weights(s, self.each, self._all_of_row("top", "max(top, {v})"))
        body += self._keep() if s.kept else []
        if s.softmax:
            body += [f"{name} *= fade.{LANES[i]};" for name, _, i, _ in self._accumulators()]
        for number in range(len(s.sums)):
            body += self._sum(number)
        return lines + self._turns(body) + self._finish()

    def _places(self) -> list[str]:
        """Invocations in the order of a Z: eight neighbours read as few rows as possible."""
        bits = int(log2(self.choice.lanes))
        across = f"(t & 1u) | (((t >> 2u) & {self.choice.lanes // 2 - 1}u) << 1u)"
        down = f"((t >> 1u) & 1u) | ((t >> {bits + 1}u) << 1u)"
        return [f"let tx = {across};", f"let ty = {down};"]

    def _owned(self) -> list[str]:
        return list(dict.fromkeys(owned for _, owned, _ in self.s.products))

    def _accumulators(self) -> Iterator[tuple[str, str, int, int]]:
        """(name, result, row of four, quad of the invocation)."""
        for result in self.s.results:
            for j in range(self.own_quads):
                for i in range(4):
                    yield f"{result}_{j}_{i}", result, i, j

    def _turns(self, body: list[str]) -> list[str]:
        """A loop over this workgroup's part of all blocks that its rows may see, head by head."""
        o, columns, splits = self.s.over, self.choice.columns, self.choice.splits
        first, blocks = "0u", f"{ceil(o.others / columns)}u"
        if o.sees == "past":
            seen = f"min({o.others}u, row0 + {self.choice.rows}u + {o.shift})"
            blocks = f"({seen} + {columns - 1}u) / {columns}u"
        elif o.sees == "future":
            first = f"(max(row0, {o.shift}) - {o.shift}) / {columns}u"
            blocks = f"{blocks} - first"
        source, block = f"head / {o.sharers}u", "turn"
        if o.members > 1:
            source, block = f"head * {o.members}u + turn / blocks", "turn % blocks"
        return [
            f"let first = {first};",
            f"let blocks = {blocks};",
            f"let turns = blocks * {o.members}u;",
            f"let share = (turns + {splits - 1}u) / {splits}u;",
            "let stop = min(turns, (part + 1u) * share);",
            "for (var turn = part * share; turn < stop; turn++) {",
            f"let source = {source};",
            f"let block = (first + {block}) * {columns}u;",
            *body,
            "}",
        ]

    def _stage(self, tile: str, rows: int, quads: int, load: str) -> list[str]:
        """Copy `rows` rows to shared memory; `load` reads row r, quad c of them."""
        lines, workgroup, stride = [], self.choice.workgroup, odd(quads)
        for begin in range(0, rows * quads, workgroup):
            rest = rows * quads - begin
            guard = f"if (t < {rest}u) " if rest < workgroup else ""
            lines.append(
                f"{guard}{{ let e = t + {begin}u; let r = e / {quads}u; let c = e % {quads}u; "
                f"{tile}[r * {stride}u + c] = {load}; }}"
            )
        return lines

    def _stage_owned(self, name: str, tile: str, quads: int, first: str) -> list[str]:
        load = f"load_{name}(head, min(row0 + r, {self.s.over.rows - 1}u), {first} + c)"
        return self._stage(tile, self.choice.rows, quads, load)

    def _stage_streamed(self, name: str, rows: int, quads: int, at: str, first: str) -> list[str]:
        load = f"load_{name}(source, min({at} + r, {self.s.over.others - 1}u), {first} + c)"
        return self._stage("streamed_tile", rows, quads, load)

    def _product(self, score: str, owned: str, streamed: str) -> list[str]:
        """Scores of own rows with own streamed rows, slice after slice of the width."""
        resident, columns = self.choice.resident, self.choice.columns
        tile, stride, skip = "owned_tile", self.part_stride, ""
        if resident:
            tile, stride, skip = f"own_{owned}", self.stride, "d + "
        lines = [f"var {score}{c} = vec4<f32>();" for c in range(self.each)]
        lines.append(_steps("d", self.part * self.slices, self.part))
        lines.append("workgroupBarrier();")
        if not resident:
            lines += self._stage_owned(owned, tile, self.part, "d")
        lines += self._stage_streamed(streamed, columns, self.part, "block", "d")
        lines.append("workgroupBarrier();")
        lines.append(f"let a = {skip}ty * {stride}u; let b = tx * {self.part_stride}u;")

        def step(k: str) -> list[str]:
            body = [f"let a{i} = {tile}[a + {k} + {i * self.height * stride}u];" for i in range(4)]
            for lane in LANES:
                body.append(f"let {lane} = vec4<f32>(a0.{lane}, a1.{lane}, a2.{lane}, a3.{lane});")
            for c in range(self.each):
                skipped = c * self.choice.lanes * self.part_stride
                body.append(f"let b{c} = streamed_tile[b + {k} + {skipped}u];")
                for lane in LANES:
                    body.append(f"{score}{c} = fma({lane}, vec4<f32>(b{c}.{lane}), {score}{c});")
            return body

        return [*lines, *_unrolled(self.part, step), "}"]

    def _all_of_row(self, name: str, combine: str) -> list[str]:
        """Combine a value over all invocations of a row, in a fixed order."""
        lines = [f"partial[tx * {self.height}u + ty] = {name};", "workgroupBarrier();"]
        lines.append(f"{name} = partial[ty];")
        for n in range(1, self.choice.lanes):
            other = f"partial[{n * self.height}u + ty]"
            lines.append(f"{name} = {combine.format(v=other)};")
        return lines

    def _keep(self) -> list[str]:
        """Write the kept weights; neighbouring invocations have neighbouring vec4s of a row."""
        o, rows = self.s.over, self.choice.rows
        lines = [f"let keep = (source * {ceil(o.rows / rows)}u + row0 / {rows}u) * {o.others}u;"]
        for c in range(self.each):
            guard = f"if (n{c} < {o.others}u) " if o.others % self.choice.columns else ""
            at = f"(keep + n{c}) * {self.height}u + ty"
            lines.append(f"{guard}{{ kept[{at}] = {self.s.kept}{c}; }}")
        return lines

    def _sum(self, number: int) -> list[str]:
        """Add the streamed rows to the accumulators of a result, under its weights."""
        weight, streamed, result = self.s.sums[number]
        stride, lanes, columns = self.choice.stride, self.choice.lanes, self.choice.columns
        # The last product has left its streamed rows in place if they fit at once.
        held = number == 0 and self.slices == 1 and self.s.products[-1][2] == streamed
        lines = [] if held else ["workgroupBarrier();"]
        lines += [
            f"weight_tile[(tx + {c * lanes}u) * {stride}u + ty] = {weight}{c};"
            for c in range(self.each)
        ]

        def step(k: str) -> list[str]:
            body = [f"let w = weight_tile[(begin + {k}) * {stride}u + ty];"]
            for j in range(self.own_quads):
                body.append(f"let b{j} = streamed_tile[{k} * {self.stride}u + column{j}];")
                for i, lane in enumerate(LANES):
                    name = f"{result}_{j}_{i}"
                    body.append(f"{name} = fma(vec4<f32>(w.{lane}), b{j}, {name});")
            return body

        lines.append(_steps("begin", columns, self.chunk))
        if not held:
            lines += ["workgroupBarrier();"] if self.chunk < columns else []
            at = "block + begin"
            lines += self._stage_streamed(streamed, self.chunk, self.quads, at, "0u")
        return [*lines, "workgroupBarrier();", *_unrolled(self.chunk, step), "}"]

    def _finish(self) -> list[str]:
        lines, lanes = [], self.choice.lanes
        if self.s.softmax:
            lines += ["workgroupBarrier();", *self._all_of_row("total", "total + {v}")]
            if self.choice.splits > 1:
                lines.append("total = max(total, vec4<f32>(1.0e-30));")
            lines.append("let inverse = vec4<f32>(1.0) / total;")
        for name, result, i, j in self._accumulators():
            value = f"{name} * inverse.{LANES[i]}" if self.s.softmax else name
            inside = f"row.{LANES[i]} < {self.s.over.rows}u"
            if self.quads % lanes:
                inside += f" && tx + {j * lanes}u < {self.quads}u"
            put = f"store_{result}(into, row.{LANES[i]}, column{j}, {value});"
            lines.append(f"if ({inside}) {{ {put} }}")
        return lines + store_lse(self.s, "tx == 0u")
