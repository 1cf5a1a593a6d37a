"""What kernels have in common in which rows keep accumulators while other rows stream past them.

Each owned row scores every streamed row by one or two dot products, turns the scores into weights,
and sums streamed rows under these weights. Attention and both of its gradients have this form; no
matrix of scores is ever stored. `streaming_tiled` and `streaming_direct` are the two ways to do it.

Roofline: compute; streamed rows are read once per workgroup of owned rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from engine.kernels.wgsl import MAX_GRID, Kernel, bindings, entry_point, f32
from engine.specialize import AttentionChoice

LANES = "xyzw"
LOWEST = "-1.0e30"
"""Score of what a row does not see: finite, also after multiplication by log2(e)."""


@dataclass(frozen=True)
class Geometry:
    """Owned rows [heads, rows, width], and streamed rows [.., others, width] that pass them.

    An owned head meets `members` streamed heads, or shares one with `sharers` - 1 neighbours.
    """

    heads: int
    rows: int
    others: int
    width: int
    members: int = 1
    sharers: int = 1
    sees: Literal["all", "past", "future"] = "all"
    """past: streamed row n <= own row + offset; future: own row <= n + offset."""
    offset: int = 0

    @property
    def quads(self) -> int:
        """Vectors of four elements per row, the last perhaps partly empty."""
        return ceil(self.width / 4)

    @property
    def wide(self) -> bool:
        """Whether buffers are read and written as vec4<f32>."""
        return self.width % 4 == 0


@dataclass(frozen=True)
class Stream:
    """What a kernel computes; matrices are [heads * rows, width], vectors [heads * rows].

    An invocation owns four rows. Weights of streamed row c are WGSL over its products `s{c}`
    (scaled) and `r{c}` with the four, vec4<f32>, over `NAME{c}`, the values of vectors that belong
    to streamed rows, f32, and over `own_NAME` of those that belong to owned rows, vec4<f32>.
    """

    label: str
    over: Geometry
    scale: float
    matrices: tuple[str, ...]
    """Names of the matrices read, in binding order; the vectors follow."""
    products: tuple[tuple[str, str, str], ...]
    """(product, owned matrix, streamed matrix); product `s` is scaled and masked."""
    sums: tuple[tuple[str, str, str], ...]
    """(weight, streamed matrix, result matrix)."""
    weights: str = ""
    """Unless given, weights `w` are the softmax of `s`, by the online algorithm."""
    own_vectors: tuple[str, ...] = ()
    streamed_vectors: tuple[str, ...] = ()
    writes_lse: bool = False
    """Also write the log-sum-exp of the scores of each row, to `lse`."""

    @property
    def softmax(self) -> bool:
        """Whether weights are the softmax of the scores."""
        return not self.weights

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products and sums."""
        o = self.over
        pairs = o.heads * o.members * o.rows * o.others
        if o.sees != "all":
            pairs = pairs // 2 + 1
        return 2 * pairs * o.width * (len(self.products) + len(self.sums))


def assemble(s: Stream, choice: AttentionChoice, body: list[str], shared: str = "") -> Kernel:
    """The kernel whose workgroups own `choice.rows` rows each, `own` + `row0` being the first."""
    tiles = ceil(s.over.rows / choice.rows)
    groups = s.over.heads * tiles
    folds = ceil(groups / MAX_GRID)
    across = ceil(groups / folds)
    whole = choice.variant == "direct" or s.over.quads % slice_quads(s, choice) == 0
    head = f"""let group = workgroup.x + workgroup.y * {across}u;
if (group >= {groups}u) {{ return; }}
let head = group / {tiles}u;
let row0 = (group % {tiles}u) * {choice.rows}u;
let own = head * {s.over.rows}u;
"""
    source = _prelude(s, whole) + shared + entry_point(choice.workgroup, head + "\n".join(body))
    o = s.over
    label = f"{s.label}_{o.heads}x{o.rows}x{o.others}x{o.width}"
    return Kernel(label, source, (across, folds, 1), s.flops)


def slice_quads(s: Stream, choice: AttentionChoice) -> int:
    """Quads staged at a time: the slices of the width are as equal as they can be."""
    return ceil(s.over.quads / ceil(s.over.quads * 4 / choice.slice))


def _prelude(s: Stream, whole: bool) -> str:
    element = "vec4<f32>" if s.over.wide else "f32"
    reads = [(name, element) for name in s.matrices]
    reads += [(name, "f32") for name in (*s.own_vectors, *s.streamed_vectors)]
    writes = [(result, element) for _, _, result in s.sums]
    writes += [("lse", "f32")] if s.writes_lse else []
    text = bindings(reads, writes) + "\n"
    text += "".join(_loader(s, name, whole) for name in s.matrices)
    return text + "".join(_store(s, result, whole) for _, _, result in s.sums)


def _loader(s: Stream, name: str, whole: bool) -> str:
    """WGSL `load_NAME(row, quad)`; zero beyond the width."""
    if s.over.wide:
        guard = "" if whole else f"if (quad >= {s.over.quads}u) {{ return vec4<f32>(); }}\n    "
        body = f"{guard}return {name}[row * {s.over.quads}u + quad];"
    else:
        lanes = []
        for lane in range(4):
            column = f"quad * 4u + {lane}u"
            value = f"{name}[row * {s.over.width}u + min({column}, {s.over.width - 1}u)]"
            lanes.append(f"select(0.0, {value}, {column} < {s.over.width}u)")
        body = f"return vec4<f32>({', '.join(lanes)});"
    return f"fn load_{name}(row: u32, quad: u32) -> vec4<f32> {{\n    {body}\n}}\n"


def _store(s: Stream, name: str, whole: bool) -> str:
    if s.over.wide:
        guard = "" if whole else f"if (quad < {s.over.quads}u) "
        body = f"{guard}{{ {name}[row * {s.over.quads}u + quad] = value; }}"
    else:
        body = "\n    ".join(
            f"if (quad * 4u + {lane}u < {s.over.width}u) "
            f"{{ {name}[row * {s.over.width}u + quad * 4u + {lane}u] = value.{LANES[lane]}; }}"
            for lane in range(4)
        )
    return f"fn store_{name}(row: u32, quad: u32, value: vec4<f32>) {{\n    {body}\n}}\n"


def own_rows(s: Stream, first: str) -> list[str]:
    """The four rows of an invocation, their values of own vectors, and the state of softmax."""
    lines = [f"let row = {first} + vec4<u32>(0u, 1u, 2u, 3u);"]
    lines.append(f"let mine = own + min(row, vec4<u32>({s.over.rows - 1}u));")
    for name in s.own_vectors:
        values = ", ".join(f"{name}[mine.{lane}]" for lane in LANES)
        lines.append(f"let own_{name} = vec4<f32>({values});")
    if s.softmax:
        lines += [f"var high = vec4<f32>({LOWEST});", "var total = vec4<f32>();"]
    return lines


def streamed_rows(s: Stream, choice: AttentionChoice, body: list[str]) -> list[str]:
    """Loops over blocks of streamed rows, from `block`, that a row of the workgroup may see."""
    first, last = "0u", f"{s.over.others}u"
    if s.over.sees == "past":
        last = f"min({s.over.others}u, row0 + {choice.rows + s.over.offset}u)"
    elif s.over.sees == "future":
        unseen = f"(max(row0, {s.over.offset}u) - {s.over.offset}u)"
        first = f"{unseen} / {choice.columns}u * {choice.columns}u"
    lines = [
        f"let base = source * {s.over.others}u;",
        f"let last = {last};",
        f"for (var block = {first}; block < last; block += {choice.columns}u) {{",
        *body,
        "}",
    ]
    if s.over.members == 1:
        return [f"let source = head / {s.over.sharers}u;", *lines]
    loop = f"for (var member = 0u; member < {s.over.members}u; member++) {{"
    return [loop, f"let source = head * {s.over.members}u + member;", *lines, "}"]


def scale_and_mask(s: Stream, choice: AttentionChoice, c: int) -> str:
    """Scale score c, and replace it where a row does not see the streamed row `n{c}`."""
    seen = []
    if s.over.others % choice.columns:
        seen.append(f"vec4<bool>(n{c} < {s.over.others}u)")
    if s.over.sees == "past":
        seen.append(f"(vec4<u32>(n{c}) <= row + {s.over.offset}u)")
    elif s.over.sees == "future":
        seen.append(f"(row <= vec4<u32>(n{c} + {s.over.offset}u))")
    scaled = f"s{c} * {f32(s.scale)}"
    if seen:
        scaled = f"select(vec4<f32>({LOWEST}), {scaled}, {' & '.join(seen)})"
    return f"s{c} = {scaled};"


def weights(s: Stream, columns: int, largest: list[str]) -> Iterator[str]:
    """Weights from scaled scores; `largest` spreads `top` over the invocations of a row."""
    if not s.softmax:
        for c in range(columns):
            at = f"base + min(n{c}, {s.over.others - 1}u)"
            yield from (f"let {name}{c} = {name}[{at}];" for name in s.streamed_vectors)
            yield s.weights.format(c=c)
        return
    top = "s0"
    for c in range(1, columns):
        top = f"max({top}, s{c})"
    yield f"var top = max(high, {top});"
    yield from largest
    yield "let fade = exp(high - top);"
    yield "high = top;"
    yield from (f"let w{c} = exp(s{c} - top);" for c in range(columns))
    yield f"total = total * fade + ({' + '.join(f'w{c}' for c in range(columns))});"


def store_lse(s: Stream, condition: str = "true") -> list[str]:
    """Write the log-sum-exp of own rows, if it is wanted, where the condition holds."""
    if not s.writes_lse:
        return []
    return [
        "let sums = high + log(total);",
        *(
            f"if ({condition} && row.{lane} < {s.over.rows}u) {{ lse[mine.{lane}] = sums.{lane}; }}"
            for lane in LANES
        ),
    ]
