"""Values rounded to f16 in blocks that share a power of two, their *level*.

The level is the biased exponent of the largest magnitude of the block that set it. At a level,
values of that exponent are scaled into [2^12, 2^13): a block may be 2^3 times larger before it
overflows, and what is 2^26 times smaller begins to lose bits. Only a block that would overflow
raises the level, by way of `peak_NAME` in shared memory, to which all others leave no trace: they
cost one maximum per element. Levels only rise, and sums of products at an old level are scaled
down, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LEAST_LEVEL = 15
"""For a smaller one the scale, or its inverse, would not be a normal number."""
TOP = 12
"""Exponent of what values of a level's exponent are scaled to."""
ROOM = 15 - TOP
"""By how much an exponent may exceed the level: 2^16 is beyond f16."""


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


def publish(name: str, vectors: Sequence[str], subgroup_size: int = 0) -> Iterator[str]:
    """Raise the peak if the invocations' vec4<f32> exceed the level; a barrier must follow.

    For a first block, which does, `subgroup_size` lets one of so many invocations speak for all.
    """
    yield "{ var most = vec4<f32>();"
    yield from (f"most = max(most, abs({v}));" for v in vectors)
    # Infinities raise it, NaN are NaN at every level.
    top, speaks = "bitcast<u32>(max(max(most.x, most.y), max(most.z, most.w)))", ""
    if subgroup_size:
        top, speaks = f"subgroupMax({top})", f" && t % {subgroup_size}u == 0u"
    exceeds = f"(top >> 23u) >= level_{name} + {ROOM}u"
    yield f"let top = {top};"
    yield f"if ({exceeds}{speaks}) {{ atomicMax(&peak_{name}[0], top); }} }}"


def rise(names: Sequence[str], accumulators: Sequence[str]) -> Iterator[str]:
    """Take the published peaks as levels, for accumulators of products of the named values."""
    for name in names:
        yield f"let peak_of_{name} = atomicLoad(&peak_{name}[0]) >> 23u;"
        exceeds = f"peak_of_{name} >= level_{name} + {ROOM}u"
        yield f"let now_{name} = select(level_{name}, peak_of_{name}, {exceeds});"
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
    return f"bitcast<f32>(({254 + TOP}u - level_{name}) << 23u)"


def undo(name: str) -> str:
    """The inverse of `scale`."""
    return f"bitcast<f32>((level_{name} - {TOP}u) << 23u)"
