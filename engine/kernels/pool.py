"""Generators for pooling and upsampling over NHWC images.

Each invocation gathers one element, or four neighbouring channels. Gradients gather too: an input
pixel visits the windows that cover it, so nothing is added atomically.
Roofline: bandwidth; windows that overlap read a pixel again, from cache.
"""

from __future__ import annotations

from math import ceil

from engine.kernels.layout import Window
from engine.kernels.operands import element, in_elements
from engine.kernels.wgsl import Kernel, bindings, f32, linear_grid, linear_main

LOWEST = "-3.4028234e38"


def _over(label: str, reads: list[str], image: tuple[int, ...], body: str, flops: int) -> Kernel:
    """Kernel over all elements of y[n, h, w, c]; the body sees image, py, px, channel and `i`."""
    n, height, width, channels = image
    kind, c = element(channels), in_elements(channels)
    count = n * height * width * c
    head = f"""
    let channel = i % {c}u;
    let px = (i / {c}u) % {width}u;
    let py = (i / {c * width}u) % {height}u;
    let image = i / {c * width * height}u;"""
    source = bindings([(name, kind) for name in reads], [("y", kind)])
    source += linear_main(count, 64, head + body)
    return Kernel(label, source, linear_grid(count, 64), flops)


def _taps(w: Window, inner: str) -> str:
    """Loops over the pixels of window (py, px): `inner` sees tap (ky, kx) and offset `at` of x."""
    c = in_elements(w.channels)
    return f"""
    for (var ky = 0u; ky < {w.kernel[0]}u; ky++) {{
        let row = py * {w.stride[0]}u + ky - {w.padding[0]}u;
        if (row >= {w.height}u) {{ continue; }}
        for (var kx = 0u; kx < {w.kernel[1]}u; kx++) {{
            let column = px * {w.stride[1]}u + kx - {w.padding[1]}u;
            if (column >= {w.width}u) {{ continue; }}
            let at = ((image * {w.height}u + row) * {w.width}u + column) * {c}u + channel;
            {inner}
        }}
    }}"""


def _covering(w: Window, inner: str) -> str:
    """Loops over the windows (oy, ox) that cover pixel (py, px), which is tap (ky, kx) of them.

    `inner` sees `at`, the window's offset. Windows are visited last one first.
    """
    (kh, kw), (sy, sx), (oh, ow) = w.kernel, w.stride, w.out
    c = in_elements(w.channels)
    return f"""
    let below = py + {w.padding[0]}u;
    let right = px + {w.padding[1]}u;
    for (var ty = 0u; ty < {ceil(kh / sy)}u; ty++) {{
        let oy = below / {sy}u - ty;
        let ky = below - oy * {sy}u;
        if (oy >= {oh}u || ky >= {kh}u) {{ continue; }}
        for (var tx = 0u; tx < {ceil(kw / sx)}u; tx++) {{
            let ox = right / {sx}u - tx;
            let kx = right - ox * {sx}u;
            if (ox >= {ow}u || kx >= {kw}u) {{ continue; }}
            let at = ((image * {oh}u + oy) * {ow}u + ox) * {c}u + channel;
            {inner}
        }}
    }}"""


def _pooled(w: Window) -> tuple[int, ...]:
    return (w.images, *w.out, w.channels)


def _images(w: Window) -> tuple[int, ...]:
    return (w.images, w.height, w.width, w.channels)


def max_pool(w: Window) -> Kernel:
    """y[n, oh, ow, c] = the largest element of each window of x[n, h, w, c]; padding never wins."""
    kind = element(w.channels)
    body = f"\n    var largest = {kind}({LOWEST});"
    body += _taps(w, "largest = max(largest, x[at]);") + "\n    y[i] = largest;"
    return _over("max_pool2d", ["x"], _pooled(w), body, w.positions * w.taps)


def max_pool_grad(w: Window) -> Kernel:
    """dx[n, h, w, c] from x, pooled m[n, oh, ow, c] and upstream g alike.

    A pixel gets the gradient of each window whose maximum it is, unless an earlier pixel of that
    window, in the order (y, x), equals it.
    """
    kind, c = element(w.channels), in_elements(w.channels)
    flag = "bool" if kind == "f32" else "vec4<bool>"
    any_won = "won" if kind == "f32" else "any(won)"
    earlier = f"""
            var won = own == m[at];
            if ({any_won}) {{
                let last = ky * {w.kernel[1]}u + kx;
                for (var tap = 0u; tap < last; tap++) {{
                    let row = oy * {w.stride[0]}u + tap / {w.kernel[1]}u - {w.padding[0]}u;
                    let column = ox * {w.stride[1]}u + tap % {w.kernel[1]}u - {w.padding[1]}u;
                    if (row >= {w.height}u || column >= {w.width}u) {{ continue; }}
                    let other = x[((image * {w.height}u + row) * {w.width}u + column) * {c}u
                        + channel];
                    won = select(won, {flag}(false), other == own);
                }}
                sum += select({kind}(), g[at], won);
            }}"""
    body = f"\n    let own = x[i];\n    var sum = {kind}();"
    body += _covering(w, earlier) + "\n    y[i] = sum;"
    return _over("max_pool2d_grad", ["x", "m", "g"], _images(w), body, w.positions * w.taps)


def _share(w: Window, divisor: str, oy: str, ox: str) -> str:
    """WGSL for what one element of window (oy, ox) counts: see `engine.ops.pool.AvgPool2d`."""
    if divisor == "one":
        return "1.0"
    if divisor == "kernel" or w.padding == (0, 0):
        return f32(1.0 / (w.kernel[0] * w.kernel[1]))
    sides = []
    sizes = zip((oy, ox), (w.height, w.width), w.kernel, w.stride, w.padding, strict=True)
    for at, size, k, s, p in sizes:
        first = f"{at} * {s}u"
        # In padded coordinates the image covers p to p + size.
        sides.append(f"(min({first} + {k}u, {size + p}u) - max({first}, {p}u))")
    return f"1.0 / f32({sides[0]} * {sides[1]})"


def avg_pool(w: Window, divisor: str) -> Kernel:
    """y[n, oh, ow, c] = each window's sum of x[n, h, w, c] over the divisor."""
    body = f"\n    var sum = {element(w.channels)}();" + _taps(w, "sum += x[at];")
    body += f"\n    y[i] = sum * ({_share(w, divisor, 'py', 'px')});"
    return _over("avg_pool2d", ["x"], _pooled(w), body, w.positions * w.taps)


def avg_unpool(w: Window, divisor: str) -> Kernel:
    """y[n, h, w, c] = for each pixel the sum of x[n, oh, ow, c] / divisor over its windows."""
    body = f"\n    var sum = {element(w.channels)}();"
    body += _covering(w, f"sum += x[at] * ({_share(w, divisor, 'oy', 'ox')});")
    return _over(
        "avg_unpool2d", ["x"], _images(w), body + "\n    y[i] = sum;", w.positions * w.taps
    )


def upsample_bilinear(image: tuple[int, ...], factor: tuple[int, int]) -> Kernel:
    """y[n, h * fy, w * fx, c] between the centres of the pixels of x[n, h, w, c]."""
    n, height, width, channels = image
    c, (fy, fx) = in_elements(channels), factor
    body = ""
    for axis, size, f in (("y", height, fy), ("x", width, fx)):
        # Twice the distance from the pixel's left edge, in units of 1 / (2 f) of a pixel.
        body += f"""
    let place{axis} = p{axis} % {f}u * 2u + 1u;
    let near{axis} = p{axis} / {f}u;
    let left{axis} = select(max(near{axis}, 1u) - 1u, near{axis}, place{axis} >= {f}u);
    let right{axis} = min(select(near{axis}, near{axis} + 1u, place{axis} >= {f}u), {size - 1}u);
    let weight{axis} = f32((place{axis} + {f}u) % {2 * f}u) * {f32(0.5 / f)};"""
    body += f"""
    let row0 = (image * {height}u + lefty) * {width}u;
    let row1 = (image * {height}u + righty) * {width}u;
    let a = x[(row0 + leftx) * {c}u + channel];
    let b = x[(row0 + rightx) * {c}u + channel];
    let d = x[(row1 + leftx) * {c}u + channel];
    let e = x[(row1 + rightx) * {c}u + channel];
    let upper = a + (b - a) * weightx;
    let lower = d + (e - d) * weightx;
    y[i] = upper + (lower - upper) * weighty;"""
    result = (n, height * fy, width * fx, channels)
    flops = 9 * n * height * fy * width * fx * channels
    return _over("upsample_bilinear", ["x"], result, body, flops)


def upsample_bilinear_grad(image: tuple[int, ...], factor: tuple[int, int]) -> Kernel:
    """The adjoint: y[n, h, w, c] = `image`, from x[n, h * fy, w * fx, c]."""
    n, height, width, channels = image
    c, (fy, fx) = in_elements(channels), factor
    kind = element(channels)
    body = f"""
    var sum = {kind}();
    for (var ty = 0u; ty < {2 * fy}u; ty++) {{
        let row = py * {fy}u + ty - {fy // 2}u;
        if (row >= {height * fy}u) {{ continue; }}
        var line = {kind}();
        for (var tx = 0u; tx < {2 * fx}u; tx++) {{
            let column = px * {fx}u + tx - {fx // 2}u;
            if (column >= {width * fx}u) {{ continue; }}
            let at = ((image * {height * fy}u + row) * {width * fx}u + column) * {c}u + channel;
            line += x[at] * share_x(px, column);
        }}
        sum += line * share_y(py, row);
    }}
    y[i] = sum;"""
    flops = 8 * fy * fx * n * height * width * channels
    kernel = _over("upsample_bilinear_grad", ["x"], image, body, flops)
    shares = _bilinear_share("y", height, fy) + _bilinear_share("x", width, fx)
    return Kernel(kernel.label, shares + kernel.source, kernel.grid, kernel.flops)


def _bilinear_share(axis: str, size: int, factor: int) -> str:
    """WGSL `share_AXIS(pixel, place)`: the weight of a pixel in an upsampled element.

    It falls from 1 at the pixel's centre to 0 one pixel away; beyond the outer centres it stays 1.
    """
    return f"""
fn share_{axis}(pixel: u32, place: u32) -> f32 {{
    let distance = i32(2u * place + 1u) - i32({2 * factor}u * pixel + {factor}u);
    if ((pixel == 0u && distance < 0) || (pixel == {size - 1}u && distance > 0)) {{ return 1.0; }}
    return max(0.0, 1.0 - f32(abs(distance)) * {f32(0.5 / factor)});
}}
"""
