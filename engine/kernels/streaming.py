"""What kernels have in common in which rows keep accumulators while other rows stream past them.

Each owned row scores every streamed row by one or two dot products, turns the scores into weights,
and sums streamed rows under these weights. Attention and both of its gradients have this form; no
matrix of scores is stored, unless one gradient keeps its weights for the other. `streaming_tiled`
and `streaming_direct` are the two ways to do it; where workgroups share the streamed rows,
`streaming_parts` merges what they found.

Roofline: compute; streamed rows are read once per workgroup of owned rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, log
from typing import Literal

from engine.kernels.heads import Place
from engine.kernels.wgsl import MAX_GRID, Kernel, bindings, entry_point, f32
from engine.specialize_attention import AttentionChoice, StreamKey, slice_quads

LANES = "xyzw"
LOG2E = 1 / log(2)
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
    offset: int | None = 0
    """None, with past: the operand `position`, u32 [1], which is bound last."""

    @property
    def shift(self) -> str:
        """The offset in WGSL."""
        return "position[0]" if self.offset is None else f"{self.offset}u"

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
    (scaled, for exp2) and `r{c}` with the four, vec4<f32>, over `NAME{c}`, the values of vectors
    that belong to streamed rows, f32, and over `own_NAME` of those of owned rows, vec4<f32>.
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
    kept: str = ""
    """A weight that is also written, to `kept`, by the tiled variant: vec4<f32> [streamed heads,
    blocks of choice.rows rows, others, choice.rows / 4], each of an invocation's four rows. Every
    row must see all others. Not of a softmax, whose weights are not final before the end."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where matrices and results lie that are not dense, by name."""
    turned: tuple[str, ...] = ()
    """Matrices turned by rotary positions as they are read, row r of a head by row r of `cosine`
    and `sine` [rows, width / 2], which are bound after the vectors; the width is 8 n."""

    @property
    def softmax(self) -> bool:
        """Whether weights are the softmax of the scores."""
        return not self.weights

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the result matrices."""
        return tuple(result for _, _, result in self.sums)

    @property
    def key(self) -> StreamKey:
        """The kernel as choices see it."""
        o = self.over
        owned = len({name for _, name, _ in self.products})
        return StreamKey(o.heads, o.rows, o.others, o.width, o.members, owned)

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products and sums."""
        o = self.over
        pairs = o.heads * o.members * o.rows * o.others
        if o.sees != "all":
            pairs = pairs // 2 + 1
        return 2 * pairs * o.width * (len(self.products) + len(self.sums))


def assemble(
    s: Stream, choice: AttentionChoice, body: list[str], shared: str = "", header: str = ""
) -> Kernel:
    """The kernel whose workgroups own `choice.rows` rows of `head` each, from `row0`.

    Results are those of head `into`: with splits, `part` after part of them.
    """
    o = s.over
    tiles = ceil(o.rows / choice.rows)
    groups = o.heads * tiles * choice.splits
    folds = ceil(groups / MAX_GRID)
    across = ceil(groups / folds)
    head = f"""let group = workgroup.x + workgroup.y * {across}u;
if (group >= {groups}u) {{ return; }}
let part = group % {choice.splits}u;
let tile = group / {choice.splits}u;
let head = tile / {tiles}u;
let row0 = (tile % {tiles}u) * {choice.rows}u;
let into = part * {o.heads}u + head;
"""
    source = _prelude(s, choice) + shared + entry_point(choice.workgroup, head + "\n".join(body))
    label = f"{s.label}_{o.heads}x{o.rows}x{o.others}x{o.width}"
    label += "_matrix" if choice.units else ""
    return Kernel(label, header + source, (across, folds, 1), s.flops)


def _prelude(s: Stream, choice: AttentionChoice) -> str:
    element = "vec4<f32>" if s.over.wide else "f32"
    reads = [(name, element) for name in s.matrices]
    reads += [(name, "f32") for name in (*s.own_vectors, *s.streamed_vectors)]
    reads += [("cosine", element), ("sine", element)] if s.turned else []
    reads += [("position", "u32")] if s.over.offset is None else []
    writes = [(result, element) for result in s.results]
    writes += [("lse", "f32")] if s.writes_lse else []
    writes += [("kept", "vec4<f32>")] if s.kept else []
    tiled = choice.variant == "tiled"
    whole = not tiled or s.over.quads % slice_quads(s.over.width, choice.slice) == 0
    owned = {name for _, name, _ in s.products}
    text = bindings(reads, writes) + "\n"
    for name in s.matrices:
        rows = s.over.rows if name in owned else s.over.others
        text += _loader(s, name, rows, whole)
    return text + "".join(_store(s, name) for name in s.results)


def _element(s: Stream, name: str, rows: int) -> str:
    """WGSL for where `row` of `head` begins in a matrix, in elements of its buffer."""
    width, scale = s.over.width, 4 if s.over.wide else 1
    place = s.places.get(name)
    if place is None:
        return f"(head * {rows}u + row) * {width // scale}u"
    return f"{place.begin('head', width, scale)} + row * {place.columns // scale}u"


def _loader(s: Stream, name: str, rows: int, whole: bool) -> str:
    """WGSL `load_NAME(head, row, quad)`; zero beyond the width."""
    begin = _element(s, name, rows)
    if s.over.wide:
        guard = "" if whole else f"if (quad >= {s.over.quads}u) {{ return vec4<f32>(); }}\n    "
        value = f"return {name}[{begin} + quad];"
        body = guard + (_turned(s, name, begin) if name in s.turned else value)
    else:
        lanes = []
        for lane in range(4):
            column = f"quad * 4u + {lane}u"
            value = f"{name}[{begin} + min({column}, {s.over.width - 1}u)]"
            lanes.append(f"select(0.0, {value}, {column} < {s.over.width}u)")
        body = f"return vec4<f32>({', '.join(lanes)});"
    return f"fn load_{name}(head: u32, row: u32, quad: u32) -> vec4<f32> {{\n    {body}\n}}\n"


def _turned(s: Stream, name: str, begin: str) -> str:
    """WGSL of a loader's turned result: low c - high s, or high c + low s."""
    half = s.over.quads // 2
    return f"""let begin = {begin};
    let upper = quad >= {half}u;
    let angle = row * {half}u + select(quad, quad - {half}u, upper);
    let other = {name}[begin + select(quad + {half}u, quad - {half}u, upper)];
    let sign = select(-1.0, 1.0, upper);
    return {name}[begin + quad] * cosine[angle] + other * sine[angle] * sign;"""


def _store(s: Stream, name: str) -> str:
    """WGSL `store_NAME(head, row, quad, value)`; drops what is beyond the width."""
    begin = _element(s, name, s.over.rows)
    if s.over.wide:
        body = f"{name}[{begin} + quad] = value;"
    else:
        body = "\n    ".join(
            f"if (quad * 4u + {lane}u < {s.over.width}u) "
            f"{{ {name}[{begin} + quad * 4u + {lane}u] = value.{LANES[lane]}; }}"
            for lane in range(4)
        )
    signature = f"store_{name}(head: u32, row: u32, quad: u32, value: vec4<f32>)"
    return f"fn {signature} {{\n    {body}\n}}\n"


def own_rows(s: Stream, rows: str) -> list[str]:
    """The four rows of an invocation, their values of own vectors, and the state of softmax."""
    lines = [f"let row = {rows};"]
    lines.append(f"let mine = min(row, vec4<u32>({s.over.rows - 1}u));")
    for name in s.own_vectors:
        values = ", ".join(f"{name}[head * {s.over.rows}u + mine.{lane}]" for lane in LANES)
        lines.append(f"let own_{name} = vec4<f32>({values});")
    if s.softmax:
        lines += [f"var high = vec4<f32>({LOWEST});", "var total = vec4<f32>();"]
    return lines


def streamed_vectors(s: Stream, columns: int) -> Iterator[str]:
    """The values of streamed vectors at the rows `at{c}`."""
    for name in s.streamed_vectors:
        for c in range(columns):
            yield f"let {name}{c} = {name}[source * {s.over.others}u + at{c}];"


def scale_and_mask(s: Stream, choice: AttentionChoice, c: int) -> str:
    """Scale score c, and replace it where a row does not see the streamed row `n{c}`."""
    seen = []
    if s.over.others % choice.columns:
        seen.append(f"vec4<bool>(n{c} < {s.over.others}u)")
    if s.over.sees == "past":
        seen.append(f"(vec4<u32>(n{c}) <= row + {s.over.shift})")
    elif s.over.sees == "future":
        seen.append(f"(row <= vec4<u32>(n{c} + {s.over.shift}))")
    scaled = f"s{c} * {f32(s.scale * LOG2E)}"
    if seen:
        scaled = f"select(vec4<f32>({LOWEST}), {scaled}, {' & '.join(seen)})"
    return f"s{c} = {scaled};"


def weights(s: Stream, columns: int, largest: list[str]) -> Iterator[str]:
    """Weights from scaled scores; `largest` spreads `top` over the invocations of a row."""
    if not s.softmax:
        yield from (s.weights.format(c=c) for c in range(columns))
        return
    top = "s0"
    for c in range(1, columns):
        top = f"max({top}, s{c})"
    yield f"var top = max(high, {top});"
    yield from largest
    yield "let fade = exp2(high - top);"
    yield "high = top;"
    yield from (f"let w{c} = exp2(s{c} - top);" for c in range(columns))
    yield f"total = total * fade + ({' + '.join(f'w{c}' for c in range(columns))});"


def store_lse(s: Stream, condition: str = "true") -> list[str]:
    """Write the log-sum-exp of own rows, if it is wanted, where the condition holds."""
    if not s.writes_lse:
        return []
    lines = [f"let sums = {f32(1 / LOG2E)} * (high + log2(total));"]
    for lane in LANES:
        put = f"lse[into * {s.over.rows}u + row.{lane}] = sums.{lane};"
        lines.append(f"if ({condition} && row.{lane} < {s.over.rows}u) {{ {put} }}")
    return lines
