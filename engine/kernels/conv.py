"""Convolution as matrix products whose operands are gathered through windows (implicit GEMM).

The taps of a window are (ky, kx, channel). With M window positions, each of the three products
is one access pattern of `engine.kernels.matmul`:

    forward          y[M, out]            = windows(x)[M, taps]        weight[out, taps]^T
    weight gradient  dw[out, taps]        = g[M, out]^T                windows(x)[M, taps]
    input gradient   dx[pixels, channels] = windows(g)[pixels, out']   weight'[out', channels]

A pixel of dx meets only the taps whose offset is congruent to its own position modulo the stride.
So the input gradient is one product per phase (residue of y and x), each over its own taps, and
never multiplies by a zero that the stride put there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from engine.kernels.epilogue import Epilogue
from engine.kernels.layout import Window
from engine.kernels.matmul import Access, MatmulShape, matmul
from engine.kernels.operands import (
    Guard,
    Stored,
    divided,
    element,
    gather,
    in_elements,
    is_wide,
    remainder,
)
from engine.kernels.wgsl import Kernel
from engine.specialize import MatmulChoice


def forward_shape(w: Window, out: int) -> MatmulShape:
    """The product that computes y[images, oh, ow, out]."""
    return MatmulShape(1, w.positions, out, w.taps, transpose_b=True)


def weight_grad_shape(w: Window, out: int) -> MatmulShape:
    """The product that computes the gradient of weight[out, taps]."""
    return MatmulShape(1, out, w.taps, w.positions, transpose_a=True)


def input_grad_shape(w: Window, out: int) -> MatmulShape:
    """The products, one per phase, that compute the gradient of x[images, h, w, channels]."""
    p = Phases(w, out)
    return MatmulShape(p.count, p.pixels, w.channels, p.depth)


def forward_access(w: Window, shape: MatmulShape, stored: Stored = "f32") -> Access:
    """Operands x, weight[out, taps] `stored` so, and those of the epilogue."""
    return Access("conv2d", a=Windows(w), b=shape.b(stored))


def weight_grad(w: Window, shape: MatmulShape, choice: MatmulChoice) -> list[Kernel]:
    """Operands g[images, oh, ow, out] and x."""
    return matmul(shape, choice, access=Access("conv2d_weight_grad", b=Windows(w)))


def input_grad(
    w: Window,
    out: int,
    shape: MatmulShape,
    choice: MatmulChoice,
    epilogue: Epilogue,
    stored: Stored = "f32",
) -> list[Kernel]:
    """Operands g[images, oh, ow, out], weight[out, taps] `stored` so, and those of the epilogue."""
    p = Phases(w, out)
    access = Access(
        "conv2d_input_grad",
        a=UpstreamWindows(p),
        b=PhaseWeights(p, stored),
        y=PhasePixels(p) if p.count > 1 else None,
        depth=p.own_depth() if p.uneven else "",
        flops=2 * w.positions * w.taps * out,
    )
    return matmul(shape, choice, epilogue, access)


@dataclass(frozen=True)
class Windows:
    """Rows are window positions (image, oy, ox), columns are taps: `unfold`, never stored."""

    w: Window

    @property
    def element(self) -> str:
        """See Reader."""
        return element(self.w.channels)

    def base(self, batch: str) -> str:
        """See Reader; there is one batch."""
        return "0u"

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        w, channels = self.w, in_elements(self.w.channels)
        (oh, ow), (kh, kw) = w.out, w.kernel
        lines = [
            f"let tap = {divided('c', channels)};",
            # Left of or above the image these wrap around to large numbers.
            f"let y = {remainder(divided('r', ow), oh)} * {w.stride[0]}u"
            f" + {divided('tap', kw) if kh > 1 else '0u'} - {w.padding[0]}u;",
            f"let x = {remainder('r', ow)} * {w.stride[1]}u"
            f" + {remainder('tap', kw)} - {w.padding[1]}u;",
            f"let at = ((({divided('r', oh * ow)}) * {w.height}u + y) * {w.width}u + x)"
            f" * {channels}u + {remainder('c', channels)};",
        ]
        limits = zip("yx", (w.height, w.width), w.padding, strict=True)
        inside = " && ".join(f"{axis} < {extent}u" for axis, extent, p in limits if p)
        shape = (w.positions, w.taps)
        # Four columns at a time must lie within one tap.
        guards, wide = (row_guard, column_guard), is_wide(w.channels)
        return gather(name, shape, guards, lines, wide=wide, inside=inside)


@dataclass(frozen=True)
class Phases:
    """How the pixels of x fall into phases, and what each phase sums over.

    A phase covers every stride-th pixel per axis, from its offset on; its taps are those
    congruent to offset + padding. Its number is the `base` of the functions of the kernel.
    """

    w: Window
    out: int

    @property
    def count(self) -> int:
        """Number of phases."""
        return prod(self.w.stride)

    @property
    def grid(self) -> tuple[int, int]:
        """Pixels of the largest phase, per axis."""
        return ceil(self.w.height / self.w.stride[0]), ceil(self.w.width / self.w.stride[1])

    @property
    def pixels(self) -> int:
        """Pixels of the largest phase in all images."""
        return self.w.images * prod(self.grid)

    @property
    def window(self) -> tuple[int, int]:
        """Taps of the largest phase, per axis."""
        (kh, kw), (sy, sx) = self.w.kernel, self.w.stride
        return ceil(kh / sy), ceil(kw / sx)

    @property
    def depth(self) -> int:
        """What the largest phase sums over: taps times out channels."""
        return prod(self.window) * self.out

    @property
    def uneven(self) -> bool:
        """Whether phases differ in their number of taps."""
        return any(k % s for k, s in zip(self.w.kernel, self.w.stride, strict=True))

    def offset(self, axis: int) -> str:
        """Coordinate of the phase's first pixel along an axis."""
        stride = self.w.stride
        if stride[axis] == 1:
            return "0u"
        return remainder("base", stride[1]) if axis else divided("base", stride[1])

    def first_tap(self, axis: int) -> str:
        """The lowest tap that meets the phase's pixels; the others lie strides apart."""
        w = self.w
        return remainder(f"{self.offset(axis)} + {w.padding[axis]}u", w.stride[axis])

    def first_position(self, axis: int) -> str:
        """The window position whose lowest tap meets the phase's first pixel."""
        w = self.w
        return divided(f"{self.offset(axis)} + {w.padding[axis]}u", w.stride[axis])

    def own_depth(self) -> str:
        """WGSL `depth(base)`: what one phase sums over, at most `depth`."""
        counts = (
            divided(f"{k + s - 1}u - {self.first_tap(axis)}", s)
            for axis, (k, s) in enumerate(zip(self.w.kernel, self.w.stride, strict=True))
        )
        product = " * ".join(f"({count})" for count in counts)
        return f"fn depth(base: u32) -> u32 {{ return {product} * {self.out}u; }}\n"

    def split_tap(self) -> list[str]:
        """WGSL statements that give `ty` and `tx` of the phase's tap number `tap`."""
        across, longer = self.window[1], self.w.kernel[1] % self.w.stride[1]
        if not longer:
            single = self.window[0] == 1 and not self.uneven
            return [
                f"let ty = {'0u' if single else divided('tap', across)};",
                f"let tx = {remainder('tap', across)};",
            ]
        # Two constants: a division by a variable would cost more than all else here.
        return [
            f"let short = {self.first_tap(1)} >= {longer}u;",
            f"let ty = select(tap / {across}u, tap / {max(across - 1, 1)}u, short);",
            f"let tx = tap - ty * select({across}u, {across - 1}u, short);",
        ]


@dataclass(frozen=True)
class UpstreamWindows:
    """Rows are the pixels (image, i, j) of a phase, columns (ty, tx, out channel)."""

    p: Phases

    @property
    def element(self) -> str:
        """See Reader."""
        return element(self.p.out)

    def base(self, batch: str) -> str:
        """See Reader; the batch is the phase."""
        return batch

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        p, out = self.p, in_elements(self.p.out)
        (rows, columns), (oh, ow) = p.grid, p.w.out
        lines = [
            f"let tap = {divided('c', out)};",
            *p.split_tap(),
            f"let oy = {remainder(divided('r', columns), rows)} + {p.first_position(0)} - ty;",
            f"let ox = {remainder('r', columns)} + {p.first_position(1)} - tx;",
            f"let at = ((({divided('r', rows * columns)}) * {oh}u + oy) * {ow}u + ox)"
            f" * {out}u + {remainder('c', out)};",
        ]
        shape, guards = (p.pixels, p.depth), (row_guard, column_guard)
        inside = f"oy < {oh}u && ox < {ow}u"
        return gather(name, shape, guards, lines, wide=is_wide(p.out), inside=inside)


@dataclass(frozen=True)
class PhaseWeights:
    """Rows (ty, tx, out channel) of a phase, columns are channels of x."""

    p: Phases
    stored: Stored = "f32"

    @property
    def element(self) -> str:
        """See Reader."""
        return element(self.p.w.channels, self.stored)

    def base(self, batch: str) -> str:
        """See Reader; the batch is the phase."""
        return batch

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        p, w, channels = self.p, self.p.w, in_elements(self.p.w.channels)
        lines = [
            f"let tap = {divided('r', p.out)};",
            *p.split_tap(),
            f"let ky = {p.first_tap(0)} + ty * {w.stride[0]}u;",
            f"let kx = {p.first_tap(1)} + tx * {w.stride[1]}u;",
            f"let at = (({remainder('r', p.out)}) * {prod(w.kernel)}u + ky * {w.kernel[1]}u + kx)"
            f" * {channels}u + c;",
        ]
        shape, guards = (p.depth, w.channels), (row_guard, column_guard)
        # A row beyond the phase's own depth has a ty beyond its taps.
        inside = f"ky < {w.kernel[0]}u" if p.uneven else ""
        wide, stored = is_wide(w.channels), self.stored
        return gather(name, shape, guards, lines, wide=wide, stored=stored, inside=inside)


@dataclass(frozen=True)
class PhasePixels:
    """Rows are the pixels of a phase, which lie a stride apart in x."""

    p: Phases

    def base(self, batch: str) -> str:
        """See Writer; the batch is the phase."""
        return batch

    def locate(self) -> list[str]:
        """See Writer."""
        p, w = self.p, self.p.w
        rows, columns = p.grid
        sy, sx = w.stride
        i, j = remainder(divided("row", columns), rows), remainder("row", columns)
        lines = [
            f"let down = ({i}) * {sy}u + {p.offset(0)};",
            f"let across = ({j}) * {sx}u + {p.offset(1)};",
        ]
        limits = (("down", w.height, sy), ("across", w.width, sx))
        outside = " || ".join(f"{axis} >= {size}u" for axis, size, step in limits if size % step)
        if outside:
            lines.append(f"if ({outside}) {{ return; }}")
        line = f"{divided('row', rows * columns)} * {w.height}u + down"
        lines.append(f"let at = (({line}) * {w.width}u + across) * {in_elements(w.channels)}u;")
        return lines
