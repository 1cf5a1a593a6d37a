"""Generators for layer, root-mean-square and group normalisation and their gradients.

All are one computation: x[images, pixels, channels] is normalised over groups of channels and all
pixels of an image. Layer norm has one pixel per image and one group. A group is the row of a row
kernel; a long one is cut into slices whose moments a launch of its own computes.
Roofline: bandwidth; the forward pass reads x three times (twice from cache), the gradient twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, isqrt

from engine.kernels.operands import element, in_elements
from engine.kernels.rows import across, row_kernel
from engine.kernels.wgsl import Kernel, bindings, f32, linear_grid, linear_main


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


@dataclass(frozen=True)
class Cut:
    """How the launches share the work: slices per group, lanes per slice."""

    slices: int
    lanes: int


def moments(g: Groups, cut: Cut) -> Kernel:
    """Mean and sum of squared differences of each slice: [rows, slices, 2]."""
    body = (
        _slice(g, cut)
        + _moments(g, cut, "first + t", "last", "count")
        + """
    if (t == 0u) { parts[row] = vec2<f32>(mean, squares); }"""
    )
    plain = replace(g, weight=False, bias=False)
    head = bindings([("x", g.element)], [("parts", "vec2<f32>")]) + _functions(plain)
    return row_kernel("moments", head, g.rows * cut.slices, cut.lanes, body, 4 * g.rows * g.size)


def normalize(label: str, g: Groups, cut: Cut, statistics: bool) -> Kernel:
    """y = (x - mean) / sqrt(var + eps), then affine and SiLU; (mean, 1 / sqrt) if `statistics`.

    With several slices the operand after the affine ones is what `moments` wrote.
    """
    reads = [("x", g.element), *_affine(g)]
    if cut.slices > 1:
        reads.append(("parts", "vec2<f32>"))
        find = _combine(g, cut)
    else:
        find = _moments(g, cut, "t", f"{g.steps}u", f32(g.size))
    keep = "    if (t == 0u && slice == 0u) { statistics[group] = vec2<f32>(mean, inv); }"
    body = f"""{_slice(g, cut)}{find}
    let inv = inverseSqrt(squares * {f32(1 / g.size)} + {f32(g.eps)});
{keep if statistics else ""}
    for (var j = first + t; j < last; j += {cut.lanes}u) {{
        let at = place(group, j);
        y[at] = finished((x[at] - mean) * inv, channel(group, j));
    }}"""
    writes = [("y", g.element), *([("statistics", "vec2<f32>")] if statistics else [])]
    head = bindings(reads, writes) + _functions(g)
    return row_kernel(label, head, g.rows * cut.slices, cut.lanes, body, 8 * g.rows * g.size)


def gradient_sums(g: Groups, cut: Cut) -> Kernel:
    """Sums of (g w) and (g w xhat) over each slice: [rows, slices, 2]."""
    body = f"""{_slice(g, cut)}{_given(g)}{_sums(g, cut, "first + t", "last")}
    if (t == 0u) {{ parts[row] = vec2<f32>(g_sum, gx_sum); }}"""
    reads = [("x", g.element), ("statistics", "vec2<f32>"), ("g", g.element), *_affine(g)]
    head = bindings(reads, [("parts", "vec2<f32>")]) + _functions(g)
    label = "norm_gradient_sums"
    return row_kernel(label, head, g.rows * cut.slices, cut.lanes, body, 8 * g.rows * g.size)


def normalize_grad(label: str, g: Groups, cut: Cut) -> Kernel:
    """Dx from x, (mean, 1 / sqrt), upstream g and the affine operands.

    dx = inv * (g w - mean(g w) - xhat * mean(g w xhat)); with several slices the last operand is
    what `gradient_sums` wrote.
    """
    reads = [("x", g.element), ("statistics", "vec2<f32>"), ("g", g.element), *_affine(g)]
    if cut.slices > 1:
        reads.append(("parts", "vec2<f32>"))
        find = f"""
    var pair = vec2<f32>();
    for (var s = t; s < {cut.slices}u; s += {cut.lanes}u) {{
        pair += parts[group * {cut.slices}u + s];
    }}
    let g_sum = total(pair.x, t);
    let gx_sum = total(pair.y, t);"""
    else:
        find = _sums(g, cut, "t", f"{g.steps}u")
    centre = f" - g_sum * {f32(1 / g.size)}" if g.centred else ""
    body = f"""{_slice(g, cut)}{_given(g)}{find}
    let slope = gx_sum * {f32(1 / g.size)};
    for (var j = first + t; j < last; j += {cut.lanes}u) {{
        let at = place(group, j);
        let hat = (x[at] - mean) * inv;
        dx[at] = inv * (weighted(g[at], hat, channel(group, j)){centre} - hat * slope);
    }}"""
    head = bindings(reads, [("dx", g.element)]) + _functions(g)
    return row_kernel(label, head, g.rows * cut.slices, cut.lanes, body, 16 * g.rows * g.size)


def affine_grad_parts(g: Groups) -> int:
    """Slices into which `affine_grad` cuts the positions (pixels of all images)."""
    return ceil(g.images * g.pixels / _positions(g))


def affine_grad(g: Groups, bias: bool) -> Kernel:
    """Sums over slices of positions: dw [slices, channels] and, if `bias`, db.

    One invocation per slice and channel element; slices are then summed by another launch.
    """
    positions = g.images * g.pixels
    channels = g.steps // g.pixels * g.groups
    count = affine_grad_parts(g) * channels
    body = f"""
    let c = i % {channels}u;
    let start = i / {channels}u * {_positions(g)}u;
    let stop = min(start + {_positions(g)}u, {positions}u);
    var dw_sum = {g.element}();
    var db_sum = {g.element}();
    for (var p = start; p < stop; p++) {{
        let at = p * {channels}u + c;
        let known = statistics[p / {g.pixels}u * {g.groups}u + c / {channels // g.groups}u];
        let hat = {"(x[at] - known.x)" if g.centred else "x[at]"} * known.y;
        let through = unfinished(g[at], hat, c);
        dw_sum += through * hat;
        db_sum += through;
    }}
    dw[i] = dw_sum;
    {"db[i] = db_sum;" if bias else ""}"""
    reads = [("x", g.element), ("statistics", "vec2<f32>"), ("g", g.element), *_affine(g)]
    writes = [("dw", g.element), *([("db", g.element)] if bias else [])]
    source = bindings(reads, writes) + _functions(g) + linear_main(count, 64, body)
    flops = 6 * positions * g.channels
    return Kernel("norm_affine_grad", source, linear_grid(count, 64), flops)


def _positions(g: Groups) -> int:
    """Positions per slice: about half the square root, so that both launches have work."""
    return max(8, isqrt(g.images * g.pixels) // 2)


def _affine(g: Groups) -> list[tuple[str, str]]:
    return [(name, g.element) for name, there in (("w", g.weight), ("b", g.bias)) if there]


def _functions(g: Groups) -> str:
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
    act = f"return u * ({sigmoid});" if g.silu else "return u;"
    finished = f"    let u = hat{weight}{bias};\n    {act}"
    adjoint = "    return g;"
    if g.silu:
        adjoint = f"    let u = hat{weight}{bias};\n    let s = {sigmoid};\n"
        adjoint += f"    return g * s * ({kind}(1.0) + u * ({kind}(1.0) - s));"
    functions = f"""
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
    return functions + across(g.width)


def _slice(g: Groups, cut: Cut) -> str:
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


def _given(g: Groups) -> str:
    return f"""
    let mean = {"statistics[group].x" if g.centred else "0.0"};
    let inv = statistics[group].y;"""


def _sums(g: Groups, cut: Cut, start: str, stop: str) -> str:
    """`g_sum` and `gx_sum` over a range of a group."""
    return f"""
    var g_part = {g.element}();
    var gx_part = {g.element}();
    for (var j = {start}; j < {stop}; j += {cut.lanes}u) {{
        let at = place(group, j);
        let hat = (x[at] - mean) * inv;
        let gw = weighted(g[at], hat, channel(group, j));
        g_part += gw;
        gx_part += gw * hat;
    }}
    let g_sum = total(across(g_part), t);
    let gx_sum = total(across(gx_part), t);"""
