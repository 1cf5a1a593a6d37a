"""Streaming rows past invocations that own four rows each; for CPU devices.

A workgroup reads the same streamed rows, `columns` of them at a time, straight from memory: their
addresses are uniform, and there is no barrier.
"""

from __future__ import annotations

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
from engine.specialize_attention import AttentionChoice


def direct(s: Stream, choice: AttentionChoice) -> Kernel:
    """The kernel by this way."""
    quads = range(s.over.quads)
    lines = own_rows(s, "row0 + t * 4u + vec4<u32>(0u, 1u, 2u, 3u)")
    for _, owned, _ in s.products:
        for i, lane in enumerate(LANES):
            lines += [
                f"let {owned}_{q}_{i} = load_{owned}(head, mine.{lane}, {q}u);" for q in quads
            ]
    for _, _, result in s.sums:
        lines += [f"var {result}_{q}_{i} = vec4<f32>();" for q in quads for i in range(4)]
    lines += _streamed_rows(s, choice, _block(s, choice))
    if s.softmax:
        lines.append("let inverse = vec4<f32>(1.0) / total;")
    for i, lane in enumerate(LANES):
        scale = f" * inverse.{lane}" if s.softmax else ""
        lines.append(f"if (row.{lane} < {s.over.rows}u) {{")
        for _, _, result in s.sums:
            values = [f"{result}_{q}_{i}{scale}" for q in quads]
            lines += [f"store_{result}(into, row.{lane}, {q}u, {values[q]});" for q in quads]
        lines.append("}")
    return assemble(s, choice, lines + store_lse(s))


def _streamed_rows(s: Stream, choice: AttentionChoice, body: list[str]) -> list[str]:
    """Loops over blocks of streamed rows, from `block`, that a row of the workgroup may see."""
    first, last = "0u", f"{s.over.others}u"
    if s.over.sees == "past":
        last = f"min({s.over.others}u, row0 + {choice.rows}u + {s.over.shift})"
    elif s.over.sees == "future":
        unseen = f"(max(row0, {s.over.shift}) - {s.over.shift})"
        first = f"{unseen} / {choice.columns}u * {choice.columns}u"
    lines = [
        f"let last = {last};",
        f"for (var block = {first}; block < last; block += {choice.columns}u) {{",
        *body,
        "}",
    ]
    if s.over.members == 1:
        return [f"let source = head / {s.over.sharers}u;", *lines]
    loop = f"for (var member = 0u; member < {s.over.members}u; member++) {{"
    return [loop, f"let source = head * {s.over.members}u + member;", *lines, "}"]


def _block(s: Stream, choice: AttentionChoice) -> list[str]:
    """Products with a block of streamed rows, then sums of them."""
    columns, quads, four = range(choice.columns), range(s.over.quads), range(4)
    lines = []
    for c in columns:
        lines.append(f"let n{c} = block + {c}u;")
        lines.append(f"let at{c} = min(n{c}, {s.over.others - 1}u);")
        for score, owned, streamed in s.products:
            lines += [f"var {score}{c} = vec4<f32>();", "{"]
            for q in quads:
                dots = ", ".join(f"dot({owned}_{q}_{i}, b{q})" for i in four)
                lines.append(f"let b{q} = load_{streamed}(source, at{c}, {q}u);")
                lines.append(f"{score}{c} += vec4<f32>({dots});")
            lines.append("}")
        lines.append(scale_and_mask(s, choice, c))
    lines += streamed_vectors(s, choice.columns)
    lines += weights(s, choice.columns, [])
    for weight, streamed, result in s.sums:
        for q in quads:
            lines.append("{")
            lines += [f"let b{c} = load_{streamed}(source, at{c}, {q}u);" for c in columns]
            for i, lane in enumerate(LANES):
                terms = " + ".join(f"{weight}{c}.{lane} * b{c}" for c in columns)
                before = f"{result}_{q}_{i}" + (f" * fade.{lane}" if s.softmax else "")
                lines.append(f"{result}_{q}_{i} = {before} + {terms};")
            lines.append("}")
    return lines
