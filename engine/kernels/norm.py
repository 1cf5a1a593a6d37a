"""Generators for layer, root-mean-square and group normalisation; gradients are in `norm_grad`.

All are one computation: x[images, pixels, channels] is normalised over groups of channels and all
pixels of an image. Layer norm has one pixel per image and one group. A group is the row of a row
kernel; a long one is cut into slices whose moments a launch of its own computes.
Roofline: bandwidth; x is read three times, twice from cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from engine.kernels.operands import element, in_elements
from engine.kernels.rows import across, row_kernel
from engine.kernels.splits import Given, Splits
from engine.kernels.wgsl import Kernel, bindings, f32


@dataclass(frozen=True)
class Groups:
    """What is normalised, and how. `weight` and `bias`: the affine operands that are present."""

    images: int
    pixels: int
    channels: int
    groups: int
    eps: float
    centred: bool = True
    silu: bool = False
    weight: bool = False
    bias: bool = False
    activation: Callable[..., str] | None = None
    """What follows: WGSL by element type and value, as `Step.emit`."""

    @property
    def rows(self) -> int:
        """Groups of all images."""
        return self.images * self.groups

    @property
    def width(self) -> int:
        """Channels of one group."""
        return self.channels // self.groups

    @property
    def size(self) -> int:
        """Elements of one group."""
        return self.pixels * self.width

    @property
    def element(self) -> str:
        """WGSL type of the elements in which tensors are read."""
        return element(self.width)

    @property
    def steps(self) -> int:
        """Elements of that type in one group."""
        return self.pixels * in_elements(self.width)


HELD = 4
"""Elements of a buffer that a lane keeps in registers."""


@dataclass(frozen=True)
class Cut:
    """How the launches share the work: slices per group, lanes per slice."""

    slices: int
    lanes: int


def moments(g: Groups, cut: Cut) -> Kernel:
    """Mean and sum of squared differences of each slice: [rows, slices, 2]."""
    body = (
        slice_of(g, cut)
        + _moments(g, cut, "first + t", "last", "count")
        + """
    if (t == 0u) { parts[row] = vec2<f32>(mean, squares); }"""
    )
    plain = replace(g, weight=False, bias=False)
    head = bindings([("x", g.element)], [("parts", "vec2<f32>")]) + functions(plain)
    return row_kernel("moments", head, g.rows * cut.slices, cut.lanes, body, 4 * g.rows * g.size)


def normalize(
    label: str, g: Groups, cut: Cut, *, statistics: bool, splits: Splits | None = None
) -> Kernel:
    """y = (x - mean) / sqrt(var + eps), then affine and SiLU; (mean, 1 / sqrt) if `statistics`.

    With several slices the operand after the affine ones is what `moments` wrote. With `splits`
    their operands come in the place of x, which is the first result.
    """
    x = Given("x", g.element, splits)
    reads = [*x.reads(), *affine_reads(g)]
    keep = "    if (t == 0u && slice == 0u) { statistics[group] = vec2<f32>(mean, inv); }"
    inverse = f"""
    let inv = inverseSqrt(squares * {f32(1 / g.size)} + {f32(g.eps)});
{keep if statistics else ""}"""
    if cut.slices == 1 and cut.lanes > 1 and g.steps <= HELD * cut.lanes:
        body = slice_of(g, cut) + _held(x, g, cut, inverse)
    else:
        if cut.slices > 1:
            reads.append(("parts", "vec2<f32>"))
            find = _combine(g, cut)
        else:
            find = _moments(g, cut, "t", f"{g.steps}u", f32(g.size))
        body = f"""{slice_of(g, cut)}{finish(x, g, cut)}{find}{inverse}
    for (var j = first + t; j < last; j += {cut.lanes}u) {{
        let at = place(group, j);
        y[at] = finished((x[at] - mean) * inv, channel(group, j));
    }}"""
    writes = [*x.writes(), ("y", g.element)]
    writes += [("statistics", "vec2<f32>")] if statistics else []
    head = bindings(reads, writes) + x.function() + functions(g)
    flops = 8 * g.rows * g.size + x.flops
    return row_kernel(label, head, g.rows * cut.slices, cut.lanes, body, flops)


def _held(x: Given, g: Groups, cut: Cut, inverse: str) -> str:
    """The work of a launch whose lanes keep their elements in registers: each is read once."""
    lines, count = [], ceil(g.steps / cut.lanes)
    inside = [(n + 1) * cut.lanes <= g.steps for n in range(count)]
    for n in range(count):
        j = f"t + {n * cut.lanes}u"
        lines.append(f"let j{n} = {j if inside[n] else f'min({j}, {g.steps - 1}u)'};")
        lines.append(f"let in{n} = {'true' if inside[n] else f'{j} < {g.steps}u'};")
        lines.append(f"let at{n} = place(group, j{n}); let x{n} = {x.at(f'at{n}')};")
        if x.splits:
            lines.append(f"if (in{n}) {{ x[at{n}] = x{n}; }}")
    zero = f"{g.element}()"

    def total(value: str) -> str:
        terms = (f"select({value.format(n=n)}, {zero}, !in{n})" for n in range(count))
        return f"total(across({' + '.join(terms)}), t)"

    lines.append("let mean = 0.0;")
    if g.centred:
        pivot = x.at("place(group, 0u)") + ("" if g.element == "f32" else ".x")
        mean = f"pivot + {total('(x{n} - pivot)')} / {f32(g.size)}"
        lines[-1:] = [f"let pivot = {pivot};", f"let mean = {mean};"]
    lines += [f"let d{n} = x{n} - mean;" for n in range(count)]
    lines += [f"let squares = {total('d{n} * d{n}')};", inverse]
    for n in range(count):
        lines.append(f"if (in{n}) {{ y[at{n}] = finished(d{n} * inv, channel(group, j{n})); }}")
    return "\n    ".join(["", *lines])


def finish(given: Given, g: Groups, cut: Cut) -> str:
    """The group's elements of a product that is finished here."""
    if given.splits is None:
        return ""
    return f"""
    for (var j = t; j < {g.steps}u; j += {cut.lanes}u) {{
        let i = place(group, j);
        {given.finish("i")}
    }}
    {"storageBarrier();" if cut.lanes > 1 else ""}"""


def affine_reads(g: Groups) -> list[tuple[str, str]]:
    """Bindings of the affine operands."""
    return [(name, g.element) for name, there in (("w", g.weight), ("b", g.bias)) if there]


def functions(g: Groups) -> str:
    """`place` and `channel` of element j of a group; `finished`: what follows normalisation, and
    its adjoint `unfinished`, which `weighted` completes.
    """
    kind, width = g.element, in_elements(g.width)
    if g.groups == 1:
        place, group = f"group * {g.steps}u + j", ""
    else:
        pixel = f"group / {g.groups}u * {g.pixels}u + j / {width}u"
        group = f"group % {g.groups}u * {width}u + "
        place = f"({pixel}) * {width * g.groups}u + {group}j % {width}u"
    inside = "j" if g.pixels == 1 else f"j % {width}u"
    weight, bias = " * w[c]" if g.weight else "", " + b[c]" if g.bias else ""
    sigmoid = f"{kind}(1.0) / ({kind}(1.0) + exp(min(-u, {kind}(80.0))))"
    act = f"u * ({sigmoid})" if g.silu else "u"
    if g.activation:
        act = g.activation(kind, "u")
    finished = f"    let u = hat{weight}{bias};\n    return {act};"
    adjoint = "    return g;"
    if g.silu:
        adjoint = f"    let u = hat{weight}{bias};\n    let s = {sigmoid};\n"
        adjoint += f"    return g * s * ({kind}(1.0) + u * ({kind}(1.0) - s));"
    text = f"""
fn place(group: u32, j: u32) -> u32 {{ return {place}; }}
fn channel(group: u32, j: u32) -> u32 {{ return {group}{inside}; }}
fn unfinished(g: {kind}, hat: {kind}, c: u32) -> {kind} {{
{adjoint}
}}
fn finished(hat: {kind}, c: u32) -> {kind} {{
{finished}
}}
fn weighted(g: {kind}, hat: {kind}, c: u32) -> {kind} {{ return unfinished(g, hat, c){weight}; }}
"""
    return text + across(g.width)


def slice_of(g: Groups, cut: Cut) -> str:
    """Which group and which of its elements this row of the launch treats."""
    if cut.slices == 1:
        return f"""
    let group = row;
    let slice = 0u;
    let first = 0u;
    let last = {g.steps}u;"""
    length = ceil(g.steps / cut.slices)
    each = 4 if g.element != "f32" else 1
    return f"""
    let group = row / {cut.slices}u;
    let slice = row % {cut.slices}u;
    let first = slice * {length}u;
    let last = min(first + {length}u, {g.steps}u);
    let count = f32((last - first) * {each}u);"""


def _moments(g: Groups, cut: Cut, start: str, stop: str, count: str) -> str:
    """`mean` and `squares`, the sum of squared differences from it, in two passes.

    The sum is taken of differences from the first element: a mean far from zero costs no digits.
    """
    loop = f"for (var j = {start}; j < {stop}; j += {cut.lanes}u)"
    mean = "let mean = 0.0;"
    if g.centred:
        origin = f"x[place(group, {'first' if cut.slices > 1 else '0u'})]"
        pivot = origin if g.element == "f32" else f"{origin}.x"
        mean = f"""let pivot = {pivot};
    var sum = {g.element}();
    {loop} {{ sum += x[place(group, j)] - pivot; }}
    let mean = pivot + total(across(sum), t) / {count};"""
    return f"""
    {mean}
    var differences = {g.element}();
    {loop} {{
        let d = x[place(group, j)] - mean;
        differences += d * d;
    }}
    let squares = total(across(differences), t);"""


def _combine(g: Groups, cut: Cut) -> str:
    """`mean` and `squares` of a group from those of its slices."""
    length = ceil(g.steps / cut.slices)
    each = g.size // g.steps
    sizes = f"f32(min({length}u, {g.steps}u - s * {length}u) * {each}u)"
    loop = f"for (var s = t; s < {cut.slices}u; s += {cut.lanes}u)"
    if not g.centred:
        return f"""
    let mean = 0.0;
    var sum = 0.0;
    {loop} {{ sum += parts[group * {cut.slices}u + s].y; }}
    let squares = total(sum, t);"""
    return f"""
    let pivot = parts[group * {cut.slices}u].x;
    var sum = 0.0;
    {loop} {{ sum += {sizes} * (parts[group * {cut.slices}u + s].x - pivot); }}
    let mean = pivot + total(sum, t) * {f32(1 / g.size)};
    var differences = 0.0;
    {loop} {{
        let part = parts[group * {cut.slices}u + s];
        let d = part.x - mean;
        differences += part.y + {sizes} * d * d;
    }}
    let squares = total(differences, t);"""
