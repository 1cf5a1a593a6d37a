"""Generators for kernels that only move data: each invocation gathers one element or vec4.

Roofline: bandwidth, one read and one write per element (`fold` reads each source once).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from engine.kernels.operands import Stored, element
from engine.kernels.splits import Given, Splits
from engine.kernels.wgsl import (
    Kernel,
    bindings,
    linear_grid,
    linear_main,
    strided_index,
    with_erf,
)


@dataclass(frozen=True)
class Window:
    """A 2-D sliding window over an NHWC image; kernel, stride and padding in pixels (y, x)."""

    images: int
    height: int
    width: int
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Number of window positions (y, x)."""
        spans = zip((self.height, self.width), self.kernel, self.stride, self.padding, strict=True)
        y, x = ((extent + 2 * p - k) // s + 1 for extent, k, s, p in spans)
        return y, x

    @property
    def positions(self) -> int:
        """Window positions of all images."""
        return self.images * prod(self.out)

    @property
    def taps(self) -> int:
        """Elements that one window covers: (ky, kx, channel)."""
        return prod(self.kernel) * self.channels


def strided_copy(label: str, shape: Sequence[int], strides: Sequence[int], offset: int) -> Kernel:
    """Y (dense, of `shape`) = x[offset + sum of coordinate * stride]; strides 0 repeat."""
    wide = bool(shape) and shape[-1] % 4 == 0 and strides[-1] == 1
    wide = wide and offset % 4 == 0 and all(s % 4 == 0 for s in strides[:-1])
    scale = 4 if wide else 1
    extents = [*shape[:-1], shape[-1] // scale] if shape else []
    steps = [*(s // scale for s in strides[:-1]), strides[-1]] if shape else []
    kind = "vec4<f32>" if wide else "f32"
    count = prod(extents)
    body = f"    y[i] = x[{strided_index('i', extents, steps, offset // scale)}];"
    source = bindings([("x", kind)], [("y", kind)]) + linear_main(count, 64, body)
    return Kernel(label, source, linear_grid(count, 64))


def joined_element(lengths: Sequence[int], stored: Stored = "f32") -> str:
    """WGSL type of the elements that `concat` copies."""
    return element(4, stored) if all(length % 4 == 0 for length in lengths) else "f32"


def concat(
    outer: int,
    lengths: Sequence[int],
    stored: Stored = "f32",
    finished: tuple[int, Splits] | None = None,
) -> Kernel:
    """y[outer, sum of lengths] from one operand [outer, length] per length, in fours if of f16.

    `finished`: the number of an operand that is a product to be finished here. What is left of it
    is bound in the operand's place, and the operand is the first result.
    """
    kind = joined_element(lengths, stored)
    scale = 1 if kind == "f32" else 4
    total = sum(lengths) // scale
    place, splits = finished or (-1, None)
    given = [Given(f"x{k}", kind, splits if k == place else None) for k in range(len(lengths))]
    cases, start = [], 0
    for k, length in enumerate(lengths):
        n = length // scale
        at = f"row * {n}u + column - {start}u"
        value = f"let at = {at}; {given[k].finish('at')} y[i] = x{k}[at];"
        start += n
        last = k == len(lengths) - 1
        cases.append(f"{{ {value} }}" if last else f"if (column < {start}u) {{ {value} }}")
    body = f"""
    let row = i / {total}u;
    let column = i % {total}u;
    {" else ".join(cases)}"""
    count = outer * total
    reads = [binding for x in given for binding in x.reads()]
    writes = [binding for x in given for binding in x.writes()]
    source = bindings(reads, [*writes, ("y", kind)])
    source += "".join(x.function() for x in given) + linear_main(count, 64, body)
    flops = sum(x.flops for x in given)
    return Kernel("concat", with_erf(source), linear_grid(count, 64), flops)


def convert(count: int, source: str, target: str) -> Kernel:
    """y[count] of type `target` from x of type `source` (f32 or u32), rounded towards zero."""
    body = f"    y[i] = {target}(x[i]);"
    if target == "u32":
        # The largest f32 below 2^32; conversion of anything beyond is not defined alike.
        body = "    y[i] = u32(clamp(x[i], 0.0, 4294967040.0));"
    text = bindings([("x", source)], [("y", target)]) + linear_main(count, 64, body)
    return Kernel("cast", text, linear_grid(count, 64))


def pad_axis(outer: int, length: int, inner: int, before: int, after: int) -> Kernel:
    """y[outer, before + length + after, inner] = x[outer, length, inner] between zeros."""
    total = before + length + after
    count = outer * total * inner
    body = f"""
    let k = (i / {inner}u) % {total}u;
    if (k < {before}u || k >= {before + length}u) {{
        y[i] = 0.0;
    }} else {{
        let row = i / {total * inner}u;
        y[i] = x[(row * {length}u + k - {before}u) * {inner}u + i % {inner}u];
    }}"""
    source = bindings([("x", "f32")], [("y", "f32")]) + linear_main(count, 64, body)
    return Kernel("pad", source, linear_grid(count, 64))


def unfold(w: Window) -> Kernel:
    """y[images * oh * ow, kh * kw * channels]: the window contents, zero outside the image."""
    oh, ow = w.out
    kh, kw = w.kernel
    scale, kind = (4, "vec4<f32>") if w.channels % 4 == 0 else (1, "f32")
    c = w.channels // scale
    count = w.images * oh * ow * kh * kw * c
    body = f"""
    let channel = i % {c}u;
    let tap = i / {c}u;
    let position = tap / {kh * kw}u;
    let y0 = i32(((position / {ow}u) % {oh}u) * {w.stride[0]}u + (tap / {kw}u) % {kh}u);
    let x0 = i32((position % {ow}u) * {w.stride[1]}u + tap % {kw}u);
    let row = y0 - {w.padding[0]};
    let column = x0 - {w.padding[1]};
    if (row < 0 || row >= {w.height} || column < 0 || column >= {w.width}) {{
        y[i] = {kind}();
    }} else {{
        let image = position / {oh * ow}u;
        let pixel = (image * {w.height}u + u32(row)) * {w.width}u + u32(column);
        y[i] = x[pixel * {c}u + channel];
    }}"""
    source = bindings([("x", kind)], [("y", kind)]) + linear_main(count, 64, body)
    return Kernel("unfold", source, linear_grid(count, 64))


def fold(w: Window) -> Kernel:
    """The adjoint of `unfold`: each pixel sums the window entries that it was copied to."""
    oh, ow = w.out
    kh, kw = w.kernel
    scale, kind = (4, "vec4<f32>") if w.channels % 4 == 0 else (1, "f32")
    c = w.channels // scale
    count = w.images * w.height * w.width * c
    taps = kh * kw * c
    body = f"""
    let channel = i % {c}u;
    let pixel = i / {c}u;
    let column = i32(pixel % {w.width}u) + {w.padding[1]};
    let row = i32((pixel / {w.width}u) % {w.height}u) + {w.padding[0]};
    let image = pixel / {w.width * w.height}u;
    var sum = {kind}();
    for (var ky = 0; ky < {kh}; ky++) {{
        let oy = row - ky;
        if (oy < 0 || oy % {w.stride[0]} != 0 || oy / {w.stride[0]} >= {oh}) {{ continue; }}
        for (var kx = 0; kx < {kw}; kx++) {{
            let ox = column - kx;
            if (ox < 0 || ox % {w.stride[1]} != 0 || ox / {w.stride[1]} >= {ow}) {{ continue; }}
            let position = (image * {oh}u + u32(oy / {w.stride[0]})) * {ow}u
                + u32(ox / {w.stride[1]});
            sum += x[position * {taps}u + u32(ky * {kw} + kx) * {c}u + channel];
        }}
    }}
    y[i] = sum;"""
    source = bindings([("x", kind)], [("y", kind)]) + linear_main(count, 64, body)
    return Kernel("fold", source, linear_grid(count, 64), count * scale * kh * kw)
