"""Small vocabulary shared by the WGSL generators: kernels, bindings, grids, literals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

MAX_GRID = 65535
"""WebGPU's guaranteed limit of workgroups per dimension."""

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Kernel:
    """One compute shader with its grid.

    Bindings are group 0: the read-only operands first, then the written ones, in order.
    `flops` is the arithmetic of the grid and serves the cost model only.
    """

    label: str
    source: str
    grid: Grid
    flops: int = 0
    base: Grid = (0, 0, 0)
    """Where the first workgroup lies in `whole`; zero unless this is a part."""
    whole: Grid | None = None
    """The grid that this kernel is a part of, if it is one."""
    resized: tuple[Kernel, ...] = field(default=(), compare=False, repr=False)
    """The same computation by workgroups of other sizes, for launches that have several kernels'
    work; sums may be taken in another order.
    """

    @property
    def takes_base(self) -> bool:
        """Whether the shader's entry point counts workgroups from a base: `part` needs that."""
        return BASE in self.source

    @property
    def overrides(self) -> dict[str, int]:
        """Values of the shader's overridable constants where they are not the default."""
        return {f"base_{axis}": n for axis, n in zip("xyz", self.base, strict=True) if n}

    def part(self, axis: int, first: int, count: int) -> Kernel:
        """The kernel of the `count` layers of workgroups from layer `first` of the grid's `axis`.

        Parts that together cover the grid do exactly what the kernel does, in any order, because
        workgroups of one launch cannot wait for each other. Raises ValueError for layers that
        the grid does not have, and when the shader takes no base.
        """
        extent = self.grid[axis]
        if not (0 <= first and 0 < count and first + count <= extent):
            raise ValueError(f"{self.label} has no layers {first} to {first + count} of {extent}")
        if not self.takes_base:
            raise ValueError(f"{self.label} cannot be cut: its entry point takes no base")
        grid, base = list(self.grid), list(self.base)
        grid[axis] = count
        base[axis] += first
        # Differences of a running total: the parts' arithmetic sums to the kernel's.
        flops = self.flops * (first + count) // extent - self.flops * first // extent
        return replace(
            self,
            grid=(grid[0], grid[1], grid[2]),
            base=(base[0], base[1], base[2]),
            flops=flops,
            whole=self.whole or self.grid,
        )


@dataclass(frozen=True)
class Step:
    """One operation: `emit(type, *argument names)` gives its WGSL expression."""

    emit: Callable[..., str]
    arguments: tuple[int, ...]
    """Indices into the operands followed by the results of earlier steps."""


def bindings(reads: Sequence[tuple[str, str]], writes: Sequence[tuple[str, str]]) -> str:
    """Declare storage bindings from (name, element type) pairs."""
    lines = [
        f"@group(0) @binding({i}) var<storage, read> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(reads)
    ]
    lines += [
        f"@group(0) @binding({len(reads) + i}) var<storage, read_write> {name}: array<{kind}>;"
        for i, (name, kind) in enumerate(writes)
    ]
    return "\n".join(lines)


BASE = """
override base_x = 0u;
override base_y = 0u;
override base_z = 0u;
"""
"""WebGPU launches count workgroups from zero; a part's pipeline sets these to where it begins."""


def entry_point(workgroup: int, body: str) -> str:
    """`main`: the body sees its `workgroup`'s id in the whole grid, and invocation `t` of it.

    All kernels enter here, so that every one can be cut into parts.
    """
    return f"""{BASE}
@compute @workgroup_size({workgroup})
fn main(@builtin(workgroup_id) from_base: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let workgroup = from_base + vec3<u32>(base_x, base_y, base_z);
{body}
}}
"""


F16_HEADER = """enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
"""
"""Before everything else in a shader for matrix units. Subgroups are uniform in these by
construction, which the analysis cannot see of t / constant.
"""


def linear_grid(threads: int, workgroup: int) -> Grid:
    """A grid for `threads` invocations that folds into y beyond the x limit; see LINEAR_INDEX."""
    groups = ceil(threads / workgroup)
    rows = ceil(groups / MAX_GRID)
    return (ceil(groups / rows), rows, 1)


def linear_main(threads: int, workgroup: int, body: str) -> str:
    """Entry point whose `i` runs over `threads`; the body may `return` early."""
    columns = linear_grid(threads, workgroup)[0]
    head = f"""    let i = (workgroup.x + workgroup.y * {columns}u) * {workgroup}u + t;
    if (i >= {threads}u) {{ return; }}
"""
    return entry_point(workgroup, head + body)


def f32(value: float) -> str:
    """A WGSL f32 literal that keeps all digits."""
    text = repr(float(value))
    return f"{text}f" if text[-1] != "f" else text


ERF = """
// Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
fn erf_{suffix}(x: {T}) -> {T} {{
    let a = abs(x);
    let t = {T}(1.0) / ({T}(1.0) + {T}(0.3275911) * a);
    let p = t * ({T}(0.254829592) + t * ({T}(-0.284496736) + t * ({T}(1.421413741)
        + t * ({T}(-1.453152027) + t * {T}(1.061405429)))));
    return sign(x) * ({T}(1.0) - p * exp(-a * a));
}}
"""


def with_erf(source: str) -> str:
    """Prepend the error functions that the source calls (WGSL has none)."""
    for suffix, kind in (("v4", "vec4<f32>"), ("f1", "f32")):
        if f"erf_{suffix}(" in source:
            source = ERF.format(T=kind, suffix=suffix) + source
    return source


def broadcast_index(index: str, shape: Sequence[int], operand: Sequence[int]) -> str:
    """Expression for the offset into `operand` (broadcast to `shape`) of linear index `index`."""
    padded = (1,) * (len(shape) - len(operand)) + tuple(operand)
    terms: list[str] = []
    extent_after, stride = 1, 1
    for extent, own in zip(reversed(shape), reversed(padded), strict=True):
        if own != 1:
            quotient = index if extent_after == 1 else f"({index} / {extent_after}u)"
            outermost = extent_after * extent == _size(shape)
            coordinate = quotient if outermost else f"({quotient} % {extent}u)"
            terms.append(coordinate if stride == 1 else f"{coordinate} * {stride}u")
            stride *= own
        extent_after *= extent
    return " + ".join(terms) or "0u"


def strides_of(shape: Sequence[int]) -> list[int]:
    """Strides of a dense row-major array, in elements."""
    return [_size(shape[axis + 1 :]) for axis in range(len(shape))]


def strided_index(index: str, shape: Sequence[int], strides: Sequence[int], start: int) -> str:
    """Expression for start + the sum of coordinate * stride, for a linear index of `shape`."""
    terms, after = [f"{start}u"], 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride:
            terms.append(f"(({index} / {after}u) % {extent}u) * {stride}u")
        after *= extent
    return " + ".join(terms)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
