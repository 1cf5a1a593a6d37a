"""Streaming rows through shared memory, past workgroups that own a block of rows; for GPUs.

A workgroup stages blocks of `columns` streamed rows, `slice` elements of the width at a time. An
invocation holds 4 x 4 scores, as one vec4 over its own rows per streamed row, and 4 rows of
accumulators. Its streamed rows lie `columns` / 4 apart, so that neighbours read different banks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from engine.kernels.streaming import (
    LANES,
    Stream,
    assemble,
    own_rows,
    scale_and_mask,
    slice_quads,
    store_lse,
    streamed_rows,
    weights,
)
from engine.kernels.wgsl import Kernel
from engine.specialize import AttentionChoice


def tiled(s: Stream, choice: AttentionChoice) -> Kernel:
    """The kernel by this way."""
    return assemble(s, choice, _Tiled(s, choice).lines(), _shared(s, choice))


def _odd(extent: int) -> int:
    """A row length in quads that spreads the same quad of neighbouring rows over all banks."""
    return extent | 1


def _shared(s: Stream, choice: AttentionChoice) -> str:
    stride = _odd(slice_quads(s, choice))
    arrays = {
        "owned_tile": choice.rows * stride,
        "streamed_tile": choice.columns * stride,
        "weight_tile": choice.columns * _odd(choice.rows // 4),
    }
    if s.softmax:
        arrays["partial"] = choice.workgroup
    return "".join(
        f"var<workgroup> {name}: array<vec4<f32>, {size}>;\n" for name, size in arrays.items()
    )


class _Tiled:
    """Writes the tiled skeleton; invocation (tx, ty) has rows 4ty to 4ty + 3."""

    def __init__(self, s: Stream, choice: AttentionChoice) -> None:
        self.s, self.choice = s, choice
        self.quads = slice_quads(s, choice)
        self.slices = ceil(s.over.quads / self.quads)
        self.stride = _odd(self.quads)
        self.across = choice.columns // 4
        self.own_columns = ceil(self.quads / self.across)
        # One owned matrix that fits at once stays in shared memory.
        self.resident = self.slices == 1 and len(s.products) == 1

    def lines(self) -> list[str]:
        s, across = self.s, self.across
        lines = [
            f"let tx = t % {across}u; let ty = t / {across}u;",
            *own_rows(s, "vec4<u32>(row0 + ty * 4u)"),
            *(
                f"let column{j} = min(tx + {j * across}u, {self.quads - 1}u);"
                for j in range(self.own_columns)
            ),
        ]
        lines += [f"var {name} = vec4<f32>();" for name, *_ in self._accumulators()]
        if self.resident:
            lines.append(self._stage_owned(s.products[0][1], "0u"))
        body = [f"let n{c} = block + tx + {c * across}u;" for c in range(4)]
        for score, owned, streamed in s.products:
            body += self._product(score, owned, streamed)
        body += [scale_and_mask(s, self.choice, c) for c in range(4)]
        body += weights(s, 4, self._all_of_row("top", "max(top, {v})"))
        if s.softmax:
            body += [f"{name} *= fade.{LANES[i]};" for name, _, i, _, _ in self._accumulators()]
        for number in range(len(s.sums)):
            body += self._sum(number)
        return lines + streamed_rows(s, self.choice, body) + self._finish()

    def _accumulators(self) -> Iterator[tuple[str, str, int, int, int]]:
        """(name, result, row of four, slice, column of the invocation)."""
        for _, _, result in self.s.sums:
            for part in range(self.slices):
                for j in range(self.own_columns):
                    for i in range(4):
                        yield f"{result}_{part}_{j}_{i}", result, i, part, j

    def _stage(self, tile: str, rows: int, load: str) -> str:
        """Copy a slice of `rows` rows to shared memory; `load` reads row r, quad c of it."""
        return (
            f"for (var e = t; e < {rows * self.quads}u; e += {self.choice.workgroup}u) {{ "
            f"let r = e / {self.quads}u; let c = e % {self.quads}u; "
            f"{tile}[r * {self.stride}u + c] = {load}; }}"
        )

    def _stage_owned(self, name: str, first: str) -> str:
        load = f"load_{name}(own + min(row0 + r, {self.s.over.rows - 1}u), {first} + c)"
        return self._stage("owned_tile", self.choice.rows, load)

    def _stage_streamed(self, name: str, first: str) -> str:
        load = f"load_{name}(base + min(block + r, {self.s.over.others - 1}u), {first} + c)"
        return self._stage("streamed_tile", self.choice.columns, load)

    def _product(self, score: str, owned: str, streamed: str) -> list[str]:
        """Scores of 4 x 4 rows, slice after slice of the width."""
        lines = [f"var {score}{c} = vec4<f32>();" for c in range(4)]
        lines.append(f"for (var d = 0u; d < {self.quads * self.slices}u; d += {self.quads}u) {{")
        lines.append("workgroupBarrier();")
        if not self.resident:
            lines.append(self._stage_owned(owned, "d"))
        lines += [self._stage_streamed(streamed, "d"), "workgroupBarrier();"]
        lines.append(f"for (var k = 0u; k < {self.quads}u; k++) {{")
        lines += [
            f"let a{i} = owned_tile[(ty * 4u + {i}u) * {self.stride}u + k];" for i in range(4)
        ]
        for lane in LANES:
            lines.append(f"let {lane} = vec4<f32>(a0.{lane}, a1.{lane}, a2.{lane}, a3.{lane});")
        for c in range(4):
            at = f"(tx + {c * self.across}u) * {self.stride}u + k"
            lines.append(f"let b{c} = streamed_tile[{at}];")
            lines += [
                f"{score}{c} = fma({lane}, vec4<f32>(b{c}.{lane}), {score}{c});" for lane in LANES
            ]
        return [*lines, "}", "}"]

    def _all_of_row(self, name: str, combine: str) -> list[str]:
        """Combine a value over all invocations of a row, in a fixed order."""
        lines = [f"partial[t] = {name};", "workgroupBarrier();"]
        lines.append(f"{name} = partial[ty * {self.across}u];")
        lines += [
            f"{name} = {combine.format(v=f'partial[ty * {self.across}u + {n}u]')};"
            for n in range(1, self.across)
        ]
        return lines

    def _sum(self, number: int) -> list[str]:
        """Add the streamed rows to the accumulators of a result, under its weights."""
        weight, streamed, result = self.s.sums[number]
        stride = _odd(self.choice.rows // 4)
        # The last product has left its streamed rows in place if they fit at once.
        held = number == 0 and self.slices == 1 and self.s.products[-1][2] == streamed
        lines = [] if held else ["workgroupBarrier();"]
        lines += [
            f"weight_tile[(tx + {c * self.across}u) * {stride}u + ty] = {weight}{c};"
            for c in range(4)
        ]
        for part in range(self.slices):
            if part > 0:
                lines.append("workgroupBarrier();")
            if not held:
                lines.append(self._stage_streamed(streamed, f"{part * self.quads}u"))
            lines += ["workgroupBarrier();"]
            lines.append(f"for (var k = 0u; k < {self.choice.columns}u; k++) {{")
            lines.append(f"let w = weight_tile[k * {stride}u + ty];")
            for j in range(self.own_columns):
                lines.append(f"let b{j} = streamed_tile[k * {self.stride}u + column{j}];")
                for i, lane in enumerate(LANES):
                    name = f"{result}_{part}_{j}_{i}"
                    lines.append(f"{name} = fma(vec4<f32>(w.{lane}), b{j}, {name});")
            lines.append("}")
        return lines

    def _finish(self) -> list[str]:
        lines = []
        if self.s.softmax:
            lines += self._all_of_row("total", "total + {v}")
            lines.append("let inverse = vec4<f32>(1.0) / total;")
        for name, result, i, part, j in self._accumulators():
            value = f"{name} * inverse.{LANES[i]}" if self.s.softmax else name
            inside = f"row.{LANES[i]} < {self.s.over.rows}u"
            if self.quads % self.across:
                inside += f" && tx + {j * self.across}u < {self.quads}u"
            quad = f"{part * self.quads}u + column{j}"
            lines.append(f"if ({inside}) {{ store_{result}(mine.{LANES[i]}, {quad}, {value}); }}")
        return lines + store_lse(self.s, "tx == 0u")
