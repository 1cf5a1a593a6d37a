"""Values rounded to f16 in blocks that share a power of two, their *level*.

The level is the biased exponent of the largest magnitude of the block that set it. At a level,
values of that exponent are scaled into [2^top, 2^(top + 1)): another block may be 2^(15 - top)
times larger before it overflows, and what is 2^(top + 14) times smaller begins to lose bits.

Whoever asks of every block whether it would overflow (`publish`, `rise`) needs little room, and
raises the level by way of `peak_NAME` in shared memory, to which all other blocks leave no trace:
they cost one maximum per element. Whoever asks afterwards (`settle`) needs more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LEAST_LEVEL = 15
"""For a smaller one the scale, or its inverse, would not be a normal number."""
TOP = 12
"""Exponent of what values of a level's exponent are scaled to, where every block is asked."""
ROOM = 15 - TOP
"""By how much an exponent may exceed the level: 2^16 is beyond f16."""


def declare(names: Sequence[str]) -> str:
    """WGSL of the peaks in shared memory: the first of four words, the second is the kernel's.

    Each fills 16 bytes: drivers place variables one after another, and matrix units read and write
    garbage where a row of an array does not begin at a multiple of that (measured on an H200).
    """
    return "".join(f"var<workgroup> peak_{name}: array<atomic<u32>, 4>;\n" for name in names)


def initial(names: Sequence[str]) -> Iterator[str]:
    """Levels and peaks before anything is known."""
    yield from (f"var level_{name} = {LEAST_LEVEL}u;" for name in names)
    # Of all shared memory only this must be zero: a device may leave out to clear the rest.
    zeros = (f"atomicStore(&peak_{name}[{place}], 0u);" for name in names for place in (0, 1))
    yield f"if (t == 0u) {{ {' '.join(zeros)} }}"
    yield "workgroupBarrier();"


def publish(name: str, vectors: Sequence[str], subgroup_size: int = 0) -> Iterator[str]:
    """Raise the peak if the invocations' vec4<f32> exceed the level; a barrier must follow.

    Where nearly all do, `subgroup_size` lets one of so many invocations speak for all.
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


def rise(names: Sequence[str]) -> Iterator[str]:
    """Take published peaks as levels; these only rise."""
    for name in names:
        yield f"let peak_of_{name} = atomicLoad(&peak_{name}[0]) >> 23u;"
        exceeds = f"peak_of_{name} >= level_{name} + {ROOM}u"
        yield f"level_{name} = select(level_{name}, peak_of_{name}, {exceeds});"


def settle(names: Sequence[str]) -> Iterator[str]:
    """Take the peaks of all that was published until now as levels."""
    for name in names:
        yield f"level_{name} = max(atomicLoad(&peak_{name}[0]) >> 23u, {LEAST_LEVEL}u);"


def scale(name: str, top: int = TOP) -> str:
    """What values are multiplied by before they are rounded."""
    return f"bitcast<f32>(({254 + top}u - level_{name}) << 23u)"


def undo(name: str, top: int = TOP) -> str:
    """The inverse of `scale`."""
    return f"bitcast<f32>((level_{name} - {top}u) << 23u)"
