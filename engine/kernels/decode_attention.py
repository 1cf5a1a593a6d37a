"""Generators for attention of a single query over a cache of keys: slices of keys, then their sum.

With one query there is nothing to share but the keys themselves, which all query heads of a key
head read. So a workgroup takes a slice of the keys for one key head, an invocation a key, and a
second launch merges the softmax of the slices (Dao et al. 2023, Flash-Decoding). Slices beyond the
position end at once.

Roofline: bandwidth, keys and values up to the position are read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from engine.kernels.attention import AttentionShape
from engine.kernels.operands import Guard
from engine.kernels.streaming import LOWEST
from engine.kernels.wgsl import (
    MAX_GRID,
    Kernel,
    bindings,
    entry_point,
    f32,
    linear_grid,
    linear_main,
)
from engine.specialize import DeviceFacts

SLICE = 64
"""Keys, and invocations, per workgroup."""
MAX_GROUP = 8
"""Query heads per key head, whose sums an invocation holds in registers."""

VECTOR = "vec4<f32>"


def slices(shape: AttentionShape) -> int:
    """Into how many slices the keys are cut."""
    return ceil(shape.keys / SLICE)


def suits(shape: AttentionShape, facts: DeviceFacts) -> bool:
    """Whether these kernels can, and on this device should, compute it."""
    quads, rest = divmod(shape.width, 4)
    whole = rest == 0 and SLICE % quads == 0 and shape.group <= MAX_GROUP
    fits = 16 * shape.group * (SLICE + quads) + 4 * shape.group * SLICE <= facts.max_shared_bytes
    grid = shape.kv_heads <= MAX_GRID and slices(shape) <= MAX_GRID
    return not facts.is_cpu and shape.queries == 1 and whole and fits and grid


def partial_attention(s: AttentionShape, start: int = 0, angles: int | None = None) -> Kernel:
    """Per head and slice: weighted sums of v [heads, slices, width], and score maximum and weight
    total [heads, slices, 2]; from q, k, v and position.

    The queries begin at element `start` of q. With `angles`, rows of cos and sin, which then follow
    the position, that of the position turns them.
    """
    quads, group, count = s.width // 4, s.group, slices(s)
    lines = [
        f"let first = workgroup.x * {SLICE}u; let n = first + t; let head = workgroup.y;",
        "if (first > position[0]) { return; }",
        f"let base = head * {s.keys}u;",
        f"for (var e = t; e < {group * quads}u; e += {SLICE}u) {{",
        *_query(s, start, angles),
        "}",
        "workgroupBarrier();",
        *(f"var s{h} = 0.0;" for h in range(group)),
        f"let row = (base + min(n, {s.keys - 1}u)) * {quads}u;",
        f"for (var c = 0u; c < {quads}u; c++) {{",
        "let key = k[row + c];",
        *(f"s{h} += dot(key, queries[{h * quads}u + c]);" for h in range(group)),
        "}",
        f"let seen = n <= position[0] && n < {s.keys}u;",
        *(f"s{h} = select({LOWEST}, s{h} * {f32(s.scale)}, seen);" for h in range(group)),
        *_tree(group, "s", "high", "max({a}, {b})"),
        # A slice that is not beyond the position has a key that is seen.
        *(f"let w{h} = select(0.0, exp(s{h} - high{h}), seen);" for h in range(group)),
        *_tree(group, "w", "total", "{a} + {b}"),
        *(f"scalars[{h * SLICE}u + t] = w{h};" for h in range(group)),
        "workgroupBarrier();",
        *_weighted_sums(s),
        f"let place = head * {group * count}u + workgroup.x;",
        f"if (t < {quads}u) {{",
        *(
            f"part[(place + {h * count}u) * {quads}u + t] = sums[{h * SLICE}u + t];"
            for h in range(group)
        ),
        "}",
        "if (t == 0u) {",
        *(f"moments[place + {h * count}u] = vec2<f32>(high{h}, total{h});" for h in range(group)),
        "}",
    ]
    reads = [("q", VECTOR), ("k", VECTOR), ("v", VECTOR), ("position", "u32")]
    reads += [("cosine", VECTOR), ("sine", VECTOR)] if angles else []
    source = f"""{bindings(reads, [("part", VECTOR), ("moments", "vec2<f32>")])}
var<workgroup> queries: array<{VECTOR}, {group * quads}>;
var<workgroup> scalars: array<f32, {group * SLICE}>;
var<workgroup> sums: array<{VECTOR}, {group * SLICE}>;
{entry_point(SLICE, chr(10).join(lines))}"""
    label = f"decode_attention_{s.heads}x{s.keys}x{s.width}"
    return Kernel(label, source, (count, s.kv_heads, 1), 4 * s.heads * s.keys * s.width)


def _query(s: AttentionShape, start: int, angles: int | None) -> list[str]:
    """Quad e of the queries of a key head."""
    quads = s.width // 4
    lines = [f"let at = {start // 4}u + head * {s.group * quads}u + e;"]
    if angles is None:
        return [*lines, "queries[e] = q[at];"]
    half = quads // 2
    return [
        *lines,
        f"let c = e % {quads}u; let upper = c >= {half}u;",
        f"let angle = min(position[0], {angles - 1}u) * {half}u + select(c, c - {half}u, upper);",
        f"let other = q[select(at + {half}u, at - {half}u, upper)];",
        "let sign = select(-1.0, 1.0, upper);",
        "queries[e] = q[at] * cosine[angle] + other * sine[angle] * sign;",
    ]


def _tree(group: int, value: str, result: str, combine: str) -> Iterator[str]:
    """`result`h: the values of all invocations combined, per query head h, in a fixed order."""
    yield "workgroupBarrier();"
    for h in range(group):
        yield f"scalars[{h * SLICE}u + t] = {value}{h};"
    half = SLICE // 2
    while half:
        yield f"workgroupBarrier();\nif (t < {half}u) {{"
        for h in range(group):
            a, b = (f"scalars[{h * SLICE + further}u + t]" for further in (0, half))
            yield f"{a} = {combine.format(a=a, b=b)};"
        yield "}"
        half //= 2
    yield "workgroupBarrier();"
    for h in range(group):
        yield f"let {result}{h} = scalars[{h * SLICE}u];"
    yield "workgroupBarrier();"


def _weighted_sums(s: AttentionShape) -> Iterator[str]:
    """Sums of the slice's rows of v in sums[h, quad]; invocations share each quad."""
    quads = s.width // 4
    yield f"let column = t % {quads}u;"
    for h in range(s.group):
        yield f"var y{h} = {VECTOR}();"
    yield f"let last = min({SLICE}u, min(position[0] + 1u, {s.keys}u) - first);"
    yield f"for (var r = t / {quads}u; r < last; r += {SLICE // quads}u) {{"
    yield f"let value = v[(base + first + r) * {quads}u + column];"
    for h in range(s.group):
        yield f"y{h} += scalars[{h * SLICE}u + r] * value;"
    yield "}"
    for h in range(s.group):
        yield f"sums[{h * SLICE}u + t] = y{h};"
    half = SLICE // 2
    while half >= quads:
        yield f"workgroupBarrier();\nif (t < {half}u) {{"
        for h in range(s.group):
            yield f"sums[{h * SLICE}u + t] += sums[{h * SLICE + half}u + t];"
        yield "}"
        half //= 2
    yield "workgroupBarrier();"


def merged_attention(s: AttentionShape) -> Kernel:
    """y [heads, width] from the sums and moments of the slices, and position."""
    threads = s.heads * s.width // 4
    source = bindings([("part", VECTOR), *MERGING], [("y", VECTOR)])
    source += _merged(s, "part") + linear_main(threads, 64, "    y[i] = merged(i);")
    flops = 4 * threads * slices(s)
    return Kernel("decode_attention_merge", source, linear_grid(threads, 64), flops)


MERGING = (("moments", "vec2<f32>"), ("position", "u32"))
"""Bindings that merging needs beside the sums."""
AT_ONCE = 16
"""Slices that are read without a loop, which would wait for each of them."""


@dataclass(frozen=True)
class MergedRow:
    """Reader (`engine.kernels.operands`) of what `merged_attention` would write, as one row."""

    shape: AttentionShape
    element: str = VECTOR

    def base(self, batch: str) -> str:
        """See Reader; there is one batch."""
        return "0u"

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        head = f"fn load_{name}(base: u32, row: u32, column: u32) -> {VECTOR}"
        return f"{_merged(self.shape, name)}{head} {{ return merged(column); }}\n"


def _merged(s: AttentionShape, part: str) -> str:
    """WGSL `merged(i)`: quad number i of the result."""
    quads, count = s.width // 4, slices(s)
    loop, numbers = "", [f"{n}u" for n in range(count)]
    if count > AT_ONCE:
        loop, numbers = "for (var n = 0u; n < used; n++) ", ["n"]
    highs, sums = [], []
    for n in numbers:
        highs.append(f"high = max(high, select({LOWEST}, moments[first + {n}].x, {n} < used));")
        sums.append(
            f"{{ let m = moments[first + {n}]; let fade = exp(m.x - high);\n"
            f"    let v = {part}[(first + {n}) * {quads}u + i % {quads}u];\n"
            f"    sum += select({VECTOR}(), fade * v, {n} < used);\n"
            f"    total += select(0.0, fade * m.y, {n} < used); }}"
        )
    return f"""
fn merged(i: u32) -> {VECTOR} {{
    let first = i / {quads}u * {count}u;
    let used = min(position[0] / {SLICE}u + 1u, {count}u);
    var high = {LOWEST};
    var sum = {VECTOR}();
    var total = 0.0;
    {loop}{{ {" ".join(highs)} }}
    {loop}{{ {" ".join(sums)} }}
    return sum / total;
}}
"""
