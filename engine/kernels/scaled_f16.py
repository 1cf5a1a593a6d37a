"""Values rounded to f16 in blocks that share a power of two, their *level*.

The level is the biased exponent of the largest magnitude so far, `peak_NAME` in shared memory,
whose bits invocations raise. At a level, values are scaled such that the largest lies in
[2^14, 2^15); what is 2^29 times smaller begins to lose bits. Levels only rise, and sums of products
at an old level are scaled down, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LEAST_LEVEL = 15
"""For a smaller one the scale, or its inverse, would not be a normal number."""


def declare(names: Sequence[str]) -> str:
    """WGSL of the peaks in shared memory.

    Each fills 16 bytes: drivers place variables one after another, and matrix units read and write
    garbage where a row of an array does not begin at a multiple of that (measured on an H200).
    """
    return "".join(f"var<workgroup> peak_{name}: array<atomic<u32>, 4>;\n" for name in names)


def initial(names: Sequence[str]) -> Iterator[str]:
    """Levels and peaks before anything is known."""
    yield from (f"var level_{name} = {LEAST_LEVEL}u;" for name in names)
    # Of all shared memory only this must be zero: a device may leave out to clear the rest.
    yield f"if (t == 0u) {{ {' '.join(f'atomicStore(&peak_{name}[0], 0u);' for name in names)} }}"
    yield "workgroupBarrier();"


def publish(name: str, vectors: Sequence[str], subgroup_size: int) -> Iterator[str]:
    """Raise the peak to the largest of the invocation's vec4<f32>; a barrier must follow."""
    yield "{ var bits = vec4<u32>();"
    # As integers, so that infinities and NaN count as large.
    yield from (f"bits = max(bits, bitcast<vec4<u32>>(abs({v})));" for v in vectors)
    yield "let most = subgroupMax(max(max(bits.x, bits.y), max(bits.z, bits.w)));"
    yield f"if (t % {subgroup_size}u == 0u) {{ atomicMax(&peak_{name}[0], most); }} }}"


def rise(names: Sequence[str], accumulators: Sequence[str]) -> Iterator[str]:
    """Take the published peaks as levels, for accumulators of products of the named values."""
    for name in names:
        yield f"let now_{name} = max(atomicLoad(&peak_{name}[0]) >> 23u, {LEAST_LEVEL}u);"
    changed = " || ".join(f"now_{name} != level_{name}" for name in names)
    risen = " + ".join(f"now_{name} - level_{name}" for name in names)
    if accumulators:
        yield f"if ({changed}) {{"
        # 2^-127 and less: nothing is left of the old sums.
        yield f"let factor = bitcast<f32>((127u - min({risen}, 127u)) << 23u);"
        yield from (f"{a} = subgroupMatrixScalarMultiply({a}, factor);" for a in accumulators)
        yield "}"
    yield from (f"level_{name} = now_{name};" for name in names)


def scale(name: str) -> str:
    """What values are multiplied by before they are rounded."""
    return f"bitcast<f32>((268u - level_{name}) << 23u)"


def undo(name: str) -> str:
    """The inverse of `scale`."""
    return f"bitcast<f32>((level_{name} - 14u) << 23u)"
