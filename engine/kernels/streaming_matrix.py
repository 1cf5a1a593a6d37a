"""Streaming rows past owned rows by a device's matrix units, which round factors to `scaled_f16`.

A subgroup computes the products and the sums of as many owned rows as a unit has. In between, the
invocations of the workgroup turn scores into weights as in `streaming_tiled`, through shared
memory. Units cannot scale single rows of what they have summed. So the reference of a softmax, its
largest score, is raised only when a score exceeds it by 2^8; then all sums go through shared memory
and back.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.kernels.scaled_f16 import declare, initial, publish, rise, scale, undo
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
from engine.kernels.streaming_tiled import Tiled
from engine.kernels.wgsl import F16_HEADER, Kernel
from engine.specialize import F16_PAD
from engine.specialize_attention import AttentionChoice

HEADROOM = "8.0"
"""Log2 of how far a score may exceed the reference of its softmax."""


def by_units(s: Stream, choice: AttentionChoice) -> Kernel:
    """The kernel by this way."""
    made = _Units(s, choice)
    return assemble(s, choice, made.lines(), made.shared(), F16_HEADER)


class _Units(Tiled):
    """Writes the kernel; invocation (tx, ty) weighs the scores of rows ty, ty + height, .."""

    def __init__(self, s: Stream, choice: AttentionChoice) -> None:
        super().__init__(s, choice)
        assert choice.units is not None
        self.units, self.width = choice.units, s.over.width
        self.streamed = list(
            dict.fromkeys([*(m for _, _, m in s.products), *(m for _, m, _ in s.sums)])
        )
        self.stride = self.width + F16_PAD
        """Of staged rows; of scores and of weights:"""
        self.score_stride = choice.columns + 4
        self.weight_stride = choice.columns + F16_PAD
        self.scaled = [weight for weight, _, _ in s.sums] if not s.softmax else []
        """Weights that have levels; those of a softmax lie between 0 and 2^8."""

    def shared(self) -> str:
        """Declarations of shared memory."""
        c = self.choice
        rows = max(c.rows, c.columns)
        names = [*self._owned(), *self.streamed, *self.scaled]
        text = declare(names)
        for name in self.streamed:
            text += f"var<workgroup> tile_{name}: array<f16, {rows * self.stride}>;\n"
        for score, _, _ in self.s.products:
            text += f"var<workgroup> score_{score}: array<f32, {c.rows * self.score_stride}>;\n"
        text += f"var<workgroup> weight_tile: array<f16, {c.rows * self.weight_stride}>;\n"
        if self.s.softmax:
            text += f"var<workgroup> partial: array<vec4<f32>, {c.workgroup}>;\n"
            text += f"var<workgroup> factors: array<f32, {c.rows}>;\n"
            text += "var<workgroup> raised: vec4<u32>;\n"
        return text

    def lines(self) -> list[str]:
        """The body of the entry point."""
        s = self.s
        names = [*self._owned(), *self.streamed, *self.scaled]
        below = ", ".join(f"{i * self.height}u" for i in range(4))
        lines = [
            *self._places(),
            f"let mine_m = t / {self.units.subgroup_size}u * {self.units.m}u;",
            *own_rows(s, f"row0 + ty + vec4<u32>({below})"),
            *(["if (t == 0u) { raised.x = 0u; }"] if s.softmax else []),
            *initial(names),
            *self._keep_owned(),
        ]
        for result in s.results:
            lines += [f"var {name} = {self._result()}();" for name in self._sums_of(result)]
        body = self._stage_turn()
        for product in s.products:
            body += self._score(*product)
        body.append("workgroupBarrier();")
        body += self._elementwise()
        for number in range(len(s.sums)):
            body += self._add(number)
        return lines + self._turns(body) + self._finish()

    # Rows in shared memory

    def _tasks(self, rows: int) -> Iterator[tuple[int, str]]:
        """(number of the task, its guard) of an invocation's vec4s of so many rows."""
        for number, begin in enumerate(range(0, rows * self.quads, self.choice.workgroup)):
            rest = rows * self.quads - begin
            yield number, f"if (t < {rest}u) " if rest < self.choice.workgroup else ""

    def _read(self, name: str, rows: int, head: str, first: str, extent: int) -> Iterator[str]:
        """Rows from row `first` on into registers, and their peak to the workgroup."""
        registers = []
        for number, guard in self._tasks(rows):
            e = f"(t + {number * self.choice.workgroup}u)"
            row = f"min({first} + {e} / {self.quads}u, {extent - 1}u)"
            registers.append(f"{name}_{number}")
            yield f"var {name}_{number} = vec4<f32>();"
            yield f"{guard}{{ {name}_{number} = load_{name}({head}, {row}, {e} % {self.quads}u); }}"
        yield from publish(name, registers)

    def _place(self, name: str, rows: int, tile: str) -> Iterator[str]:
        """The registers into shared memory, at their level."""
        yield f"{{ let factor = {scale(name)};"
        for number, guard in self._tasks(rows):
            e = f"(t + {number * self.choice.workgroup}u)"
            stores = " ".join(f"{tile}[at + {k}u] = h.{lane};" for k, lane in enumerate(LANES))
            yield (
                f"{guard}{{ let h = vec4<f16>({name}_{number} * factor); let at = "
                f"{e} / {self.quads}u * {self.stride}u + {e} % {self.quads}u * 4u; {stores} }}"
            )
        yield "}"

    def _keep_owned(self) -> Iterator[str]:
        """Owned rows as matrices in registers, staged in the tiles of streamed ones."""
        s, rows, u = self.s, self.choice.rows, self.units
        pairs = list(zip(self._owned(), self.streamed, strict=False))
        for name, _ in pairs:
            yield from self._read(name, rows, "head", "row0", s.over.rows)
        yield "workgroupBarrier();"
        yield from rise([name for name, _ in pairs])
        for name, tile in pairs:
            yield from self._place(name, rows, f"tile_{tile}")
        yield "workgroupBarrier();"
        for name, tile in pairs:
            for k in range(self.width // u.k):
                kind = f"subgroup_matrix_left<f16, {u.k}, {u.m}>"
                at = f"mine_m * {self.stride}u + {k * u.k}u"
                yield f"let own_{name}_{k} = {_load(kind, f'tile_{tile}', at, self.stride)};"

    def _stage_turn(self) -> list[str]:
        """The streamed rows of a turn."""
        columns = self.choice.columns
        lines: list[str] = []
        for name in self.streamed:
            lines += self._read(name, columns, "source", "block", self.s.over.others)
        # Also ends the turn before.
        lines.append("workgroupBarrier();")
        lines += [f"let before_{name} = level_{name};" for _, name, _ in self.s.sums]
        lines += rise(self.streamed)
        for name in self.streamed:
            lines += self._place(name, columns, f"tile_{name}")
        for c in range(self.each):
            lines.append(f"let n{c} = block + tx + {c * self.choice.lanes}u;")
            lines.append(f"let at{c} = min(n{c}, {self.s.over.others - 1}u);")
        return [*lines, *streamed_vectors(self.s, self.each), "workgroupBarrier();"]

    # Products and weights

    def _score(self, score: str, owned: str, streamed: str) -> Iterator[str]:
        """A subgroup's scores of all columns, to shared memory."""
        u, stride = self.units, self.stride
        for j in range(self.choice.columns // u.n):
            # Declared without a value, it would keep that of the last turn on some drivers.
            yield f"{{ var sum = {self._result()}();"
            for k in range(self.width // u.k):
                kind = f"subgroup_matrix_right<f16, {u.n}, {u.k}>"
                at = f"{j * u.n * stride + k * u.k}u"
                right = _load(kind, f"tile_{streamed}", at, stride, turned=True)
                yield f"sum = subgroupMatrixMultiplyAccumulate(own_{owned}_{k}, {right}, sum);"
            at = f"mine_m * {self.score_stride}u + {j * u.n}u"
            yield f"{_store(f'score_{score}', at, 'sum', self.score_stride)} }}"

    def _elementwise(self) -> Iterator[str]:
        """Weights `w{c}`, .. from the scores in shared memory."""
        s = self.s
        for score, owned, streamed in s.products:
            yield f"let undo_{score} = {undo(owned)}; let undo2_{score} = {undo(streamed)};"
            for c in range(self.each):
                lanes = ", ".join(
                    f"score_{score}[(ty + {i * self.height}u) * {self.score_stride}u"
                    f" + tx + {c * self.choice.lanes}u]"
                    for i in range(4)
                )
                yield f"var {score}{c} = vec4<f32>({lanes}) * undo_{score} * undo2_{score};"
        yield from (scale_and_mask(s, self.choice, c) for c in range(self.each))
        if not s.softmax:
            yield from weights(s, self.each, [])
            return
        top = "s0"
        for c in range(1, self.each):
            top = f"max({top}, s{c})"
        yield f"var top = {top};"
        yield from self._all_of_row("top", "max(top, {v})")
        yield f"let raise = top > high + {HEADROOM};"
        yield "let next = select(high, top, raise);"
        yield "let fade = exp2(high - next); high = next;"
        yield from (f"let w{c} = exp2(s{c} - high);" for c in range(self.each))
        total = " + ".join(f"w{c}" for c in range(self.each))
        yield f"total = total * fade + ({total});"
        yield "if (any(raise)) { raised.x = turn + 1u; }"
        yield from self._share_factors("fade")

    def _share_factors(self, value: str) -> Iterator[str]:
        """A factor of each row to the workgroup."""
        yield "if (tx == 0u) {"
        for i, lane in enumerate(LANES):
            yield f"factors[ty + {i * self.height}u] = {value}.{lane};"
        yield "}"

    # Sums

    def _sums_of(self, result: str) -> list[str]:
        """Names of a subgroup's accumulators of a result."""
        return [f"{result}_{j}" for j in range(self.width // self.units.n)]

    def _result(self) -> str:
        return f"subgroup_matrix_result<f32, {self.units.n}, {self.units.m}>"

    def _add(self, number: int) -> Iterator[str]:
        """Add the streamed rows to the accumulators of a result, under its weights."""
        weight, streamed, result = self.s.sums[number]
        u, sums = self.units, self._sums_of(result)
        if weight in self.scaled:
            vectors = [f"{weight}{c}" for c in range(self.each)]
            yield from publish(weight, vectors)
            # The sum before may still read the tile.
            yield "workgroupBarrier();"
            yield f"let old_{weight} = level_{weight};"
            yield from rise([weight])
            yield from _lower(sums, f"level_{weight} - old_{weight}", streamed)
            yield f"let factor_{weight} = {scale(weight)};"
        else:
            yield from _lower(sums, "0u", streamed)
        factor = f" * factor_{weight}" if weight in self.scaled else ""
        for c in range(self.each):
            yield f"{{ let h = vec4<f16>({weight}{c}{factor});"
            for i, lane in enumerate(LANES):
                at = f"(ty + {i * self.height}u) * {self.weight_stride}u"
                yield f"weight_tile[{at} + tx + {c * self.choice.lanes}u] = h.{lane};"
            yield "}"
        if self.s.softmax:
            yield "if (workgroupUniformLoad(&raised).x == turn + 1u) {"
            yield from self._through_memory(sums)
            yield "}"
        else:
            yield "workgroupBarrier();"
        for k in range(self.choice.columns // u.k):
            kind = f"subgroup_matrix_left<f16, {u.k}, {u.m}>"
            at = f"mine_m * {self.weight_stride}u + {k * u.k}u"
            yield f"{{ let left = {_load(kind, 'weight_tile', at, self.weight_stride)};"
            for j, name in enumerate(sums):
                kind = f"subgroup_matrix_right<f16, {u.n}, {u.k}>"
                at = f"{k * u.k * self.stride + j * u.n}u"
                right = _load(kind, f"tile_{streamed}", at, self.stride)
                yield f"{name} = subgroupMatrixMultiplyAccumulate(left, {right}, {name});"
            yield "}"

    def _pieces(self, sums: list[str]) -> Iterator[tuple[int, list[str]]]:
        """(first column, accumulators) of as many columns as scores have room for."""
        each = self.choice.columns // self.units.n
        for begin in range(0, len(sums), each):
            yield begin * self.units.n, sums[begin : begin + each]

    def _to_memory(self, sums: list[str]) -> Iterator[str]:
        for j, name in enumerate(sums):
            at = f"mine_m * {self.score_stride}u + {j * self.units.n}u"
            yield _store(self._room(), at, name, self.score_stride)

    def _room(self) -> str:
        return f"score_{self.s.products[0][0]}"

    def _through_memory(self, sums: list[str]) -> Iterator[str]:
        """Multiply the rows of all accumulators by `factors`."""
        for _, piece in self._pieces(sums):
            width = len(piece) * self.units.n
            yield "workgroupBarrier();"
            yield from self._to_memory(piece)
            yield "workgroupBarrier();"
            count = self.choice.rows * width
            yield f"for (var e = t; e < {count}u; e += {self.choice.workgroup}u) {{"
            yield f"let r = e / {width}u;"
            yield f"{self._room()}[r * {self.score_stride}u + e % {width}u] *= factors[r]; }}"
            yield "workgroupBarrier();"
            for j, name in enumerate(piece):
                at = f"mine_m * {self.score_stride}u + {j * self.units.n}u"
                yield f"{name} = {_load(self._result(), self._room(), at, self.score_stride)};"

    def _finish(self) -> list[str]:
        s, o, lines = self.s, self.s.over, ["workgroupBarrier();"]
        if s.softmax:
            lines += self._all_of_row("total", "total + {v}")
            if self.choice.splits > 1:
                lines.append("total = max(total, vec4<f32>(1.0e-30));")
            lines += self._share_factors("(vec4<f32>(1.0) / total)")
        for weight, streamed, result in s.sums:
            undone = f" * {undo(streamed)}"
            undone += f" * {undo(weight)}" if weight in self.scaled else ""
            undone += " * factors[r]" if s.softmax else ""
            for column, piece in self._pieces(self._sums_of(result)):
                quads = len(piece) * self.units.n // 4
                lines += self._to_memory(piece)
                lines.append("workgroupBarrier();")
                count = self.choice.rows * quads
                lines.append(f"for (var e = t; e < {count}u; e += {self.choice.workgroup}u) {{")
                lines.append(f"let r = e / {quads}u; let q = e % {quads}u;")
                lines.append(f"let at = r * {self.score_stride}u + q * 4u;")
                values = ", ".join(f"{self._room()}[at + {k}u]" for k in range(4))
                value = f"vec4<f32>({values}){undone}"
                put = f"store_{result}(into, row0 + r, {column // 4}u + q, {value});"
                lines.append(f"if (row0 + r < {o.rows}u) {{ {put} }} }}")
                lines.append("workgroupBarrier();")
        return lines + store_lse(s, "tx == 0u")


def _load(kind: str, array: str, at: str, stride: int, *, turned: bool = False) -> str:
    turned_word = "true" if turned else "false"
    return f"subgroupMatrixLoad<{kind}>(&{array}, {at}, {turned_word}, {stride}u)"


def _store(array: str, at: str, value: str, stride: int) -> str:
    return f"subgroupMatrixStore(&{array}, {at}, {value}, false, {stride}u);"


def _lower(sums: list[str], risen: str, streamed: str) -> Iterator[str]:
    """Accumulators at the levels of this turn."""
    yield f"{{ let rise = {risen} + level_{streamed} - before_{streamed};"
    yield "if (rise > 0u) { let factor = bitcast<f32>((127u - min(rise, 127u)) << 23u);"
    yield from (f"{name} = subgroupMatrixScalarMultiply({name}, factor);" for name in sums)
    yield "} }"
