"""Several kernels as one launch: its workgroups are theirs, one kernel's after another's.

The library puts a barrier before every launch whose buffers were used before, so launches that do
not depend on each other still wait for each other. Workgroups of one launch run side by side.
Nothing is added to a kernel's arithmetic, so its results stay the same bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from math import ceil, prod

from engine.kernels.wgsl import F16_HEADER, Kernel, entry_point, linear_grid

SEPARATOR = "&"
"""Between the labels of what was merged."""

_ENTRY = re.compile(
    re.escape(entry_point(64, "BODY").split("BODY")[0].strip()).replace("64", r"(\d+)", 1)
)
_DECLARED = re.compile(r"(?:\b(?:fn|struct|const|alias)|var<[^>]*>)\s+(\w+)")
_BINDING = re.compile(
    r"@group\(0\) @binding\((\d+)\) var<storage, (read|read_write)> (\w+): array<([^;]*)>;\n?"
)
_SHARED = re.compile(r"var<workgroup> (\w+): ([^;]*);\n?")
_STRUCT = re.compile(r"struct (\w+) (\{[^}]*\})\n?")
_WAITS = re.compile(r"\b(\w+Barrier|subgroup\w*)\(|var<workgroup>")


@lru_cache(maxsize=4096)
def workgroup_of(kernel: Kernel) -> int:
    """Invocations per workgroup; 0 for a kernel that does not enter as the engine's do."""
    found = _ENTRY.search(kernel.source)
    return int(found[1]) if found else 0


@lru_cache(maxsize=4096)
def waits(kernel: Kernel) -> bool:
    """Whether the invocations of a workgroup have to do with each other: then its size is fixed."""
    return bool(_WAITS.search(kernel.source))


def sized(kernel: Kernel, size: int) -> Kernel | None:
    """What does a kernel's work in workgroups of `size` invocations, if anything does."""
    for one in (kernel, *kernel.resized):
        if workgroup_of(one) == size:
            return one
    own = workgroup_of(kernel)
    free = own > 0 and not waits(kernel) and (size % own == 0 or own % size == 0)
    return kernel if free else None


def common_size(kernels: Sequence[Kernel]) -> int | None:
    """Invocations per workgroup with which a launch can do the work of all kernels, if there is:
    those that most of them have anyway.
    """
    usual = Counter(map(workgroup_of, kernels))
    sizes = {workgroup_of(one) for kernel in kernels for one in (kernel, *kernel.resized)}
    fitting = [size for size in sizes if size and all(sized(kernel, size) for kernel in kernels)]
    return max(fitting, key=lambda size: (usual[size], -size), default=None)


def choice(kernel: Kernel) -> int:
    """How many sizes of workgroups there are beside the usual one; 99: any."""
    return len(kernel.resized) if waits(kernel) else 99


def shared_bytes(kernels: Sequence[Kernel]) -> int:
    """Shared memory of the launch that does the work of all kernels."""
    slots = _slots([_shared_types(kernel) for kernel in kernels])
    return sum(_type_bytes(_kind(*slot)) for slot in slots)


def aligned(kernels: Sequence[Kernel]) -> bool:
    """Whether matrix units, where a kernel uses them, find their arrays at multiples of 16 bytes:
    shared memory is laid out without gaps.
    """
    kinds = {kind for kernel in kernels for kind in _shared_types(kernel)}
    units = any(kernel.source.startswith(F16_HEADER) for kernel in kernels)
    return not units or all(_type_bytes(kind) % 16 == 0 for kind in kinds)


@lru_cache(maxsize=4096)
def _shared_types(kernel: Kernel) -> tuple[str, ...]:
    """Types of a kernel's variables in shared memory; instead of a struct its members."""
    kinds = [kind for _, kind in _SHARED.findall(kernel.source)]
    for name, body in reversed(_STRUCT.findall(kernel.source)):
        kinds = [re.sub(rf"\b{name}\b", body, kind) for kind in kinds]
    return tuple(kinds)


_Slot = tuple[str, int]
"""A variable in shared memory: its type, and its length if it is an array of that, or 0."""


def _slot(kind: str) -> _Slot:
    if not kind.startswith("array<"):
        return kind, 0
    inner, count = kind[6:-1].rsplit(",", 1)
    return inner, int(count)


def _kind(inner: str, count: int) -> str:
    return f"array<{inner}, {count}>" if count else inner


def _slots(kinds: Sequence[Sequence[str]]) -> list[_Slot]:
    """Variables for several kernels, of whose own `kinds` are the types: one at a time has them.

    Of each type a kernel's longest array takes the longest, and so on.
    """
    longest: dict[str, list[int]] = {}
    for own in kinds:
        lengths: dict[str, list[int]] = {}
        for inner, count in sorted(map(_slot, own), key=lambda slot: -slot[1]):
            lengths.setdefault(inner, []).append(count)
        for inner, counts in lengths.items():
            pairs = zip_longest(longest.get(inner, ()), counts, fillvalue=0)
            longest[inner] = [max(pair) for pair in pairs]
    return [(inner, count) for inner, counts in longest.items() for count in counts]


def _type_bytes(kind: str) -> int:
    """Bytes of a type in shared memory."""
    if kind.startswith("array<"):
        inner, count = _slot(kind)
        return count * _type_bytes(inner)
    if kind.startswith("{"):
        return sum(_type_bytes(member) for member in _members(kind))
    if kind == "f16":
        return 2
    return 4 * int(kind[3]) if kind.startswith("vec") else 4


def _members(body: str) -> Iterator[str]:
    """Types of a struct's members: commas inside of types divide none."""
    for member in re.split(r",\s*(?=\w+:)", body.strip("{} ")):
        yield member.split(":", 1)[1].strip()


@dataclass(frozen=True)
class Bound:
    """A binding of a part: the number of the operand that it is, and whether that is written."""

    operand: int
    written: bool


@dataclass(frozen=True)
class Merged:
    """A kernel, and which operands it binds, in its order."""

    kernel: Kernel
    operands: tuple[int, ...]


@lru_cache(maxsize=1024)
def merged(parts: tuple[Kernel, ...], bound: tuple[tuple[Bound, ...], ...]) -> Merged:
    """The kernel of all workgroups of `parts`; `bound` says what each of these binds, in order.

    What two parts read as the same elements is bound once. Raises ValueError for kernels whose
    workgroups have no common size, and for those of a part of a launch.
    """
    size = common_size(parts)
    if size is None:
        raise ValueError(f"{' and '.join(part.label for part in parts)} have no common size")
    if any(part.whole for part in parts):
        raise ValueError("a part of a launch cannot be merged")
    fitting = [part for part in (sized(part, size) for part in parts) if part]
    pieces = [
        _Piece(f"k{number}_", part, own)
        for number, (part, own) in enumerate(zip(fitting, bound, strict=True))
    ]
    declarations, operands = _bindings(pieces)
    shared = _structs(pieces) + _shared(pieces)
    calls: list[str] = []
    first = 0
    for piece in pieces:
        count = piece.workgroups(size)
        calls.append(f"if (flat < {first + count}u) {{ {piece.call(size, first)} return; }}")
        first += count
    grid = linear_grid(first, 1)
    lines = [f"let flat = workgroup.x + workgroup.y * {grid[0]}u;", *calls]
    # Directives come before everything else.
    header = F16_HEADER if any(p.source.startswith(F16_HEADER) for p in fitting) else ""
    source = header + declarations + shared + "".join(piece.text for piece in pieces)
    source += entry_point(size, "\n".join(f"    {line}" for line in lines))
    label = SEPARATOR.join(part.label for part in parts)
    return Merged(Kernel(label, source, grid, sum(part.flops for part in parts)), operands)


class _Piece:
    """A kernel's source as functions whose names begin with `prefix`; bindings apart."""

    def __init__(self, prefix: str, kernel: Kernel, bound: Sequence[Bound]) -> None:
        self.prefix, self.kernel = prefix, kernel
        self.size = workgroup_of(kernel)
        source = kernel.source.removeprefix(F16_HEADER)
        source = _ENTRY.sub("fn main(workgroup: vec3<u32>, t: u32) {", source)
        names = {*_DECLARED.findall(source)}
        # Members and swizzles follow a dot; a local of the same name is renamed with its uses.
        word = re.compile(rf"(?<![.\w])({'|'.join(sorted(names, key=len, reverse=True))})\b")
        source = word.sub(lambda found: prefix + found[1], source)
        declared = sorted(_BINDING.findall(source), key=lambda entry: int(entry[0]))
        self.bindings = [
            (own, name, kind) for own, (_, _, name, kind) in zip(bound, declared, strict=True)
        ]
        self.text = _BINDING.sub("", source)

    def rename(self, old: str, new: str) -> None:
        self.text = re.sub(rf"(?<![.\w]){old}\b", new, self.text)

    def workgroups(self, size: int) -> int:
        """Workgroups of `size` invocations that it takes."""
        return ceil(prod(self.kernel.grid) * self.size / size)

    def call(self, size: int, first: int) -> str:
        """WGSL that does the work of workgroup `flat` of those from `first`."""
        x, y, _ = self.kernel.grid
        own = f"let own = flat - {first}u;"
        t, guard = "t", ""
        if size > self.size:
            own = f"let own = (flat - {first}u) * {size // self.size}u + t / {self.size}u;"
            # Had some invocations returned, WGSL would refuse barriers in what follows.
            guard = f"if (own < {prod(self.kernel.grid)}u) "
            t = f"t % {self.size}u"
        elif size < self.size:
            share = self.size // size
            own = f"let own = (flat - {first}u) / {share}u;"
            t = f"(flat - {first}u) % {share}u * {size}u + t"
        place = f"vec3<u32>(own % {x}u, own / {x}u % {y}u, own / {x * y}u)"
        return f"{own} {guard}{{ {self.prefix}main({place}, {t}); }}"


def _bindings(pieces: Sequence[_Piece]) -> tuple[str, tuple[int, ...]]:
    """Declarations of all bindings, and the operands in their order."""
    reads: dict[tuple[int, str], str] = {}
    writes: list[tuple[int, str, str]] = []
    for piece in pieces:
        for own, name, kind in piece.bindings:
            if own.written:
                writes.append((own.operand, name, kind))
            elif reads.setdefault((own.operand, kind), name) != name:
                piece.rename(name, reads[own.operand, kind])
    everything = [(operand, name, kind, "read") for (operand, kind), name in reads.items()]
    everything += [(operand, name, kind, "read_write") for operand, name, kind in writes]
    text = "".join(
        f"@group(0) @binding({k}) var<storage, {access}> {name}: array<{kind}>;\n"
        for k, (_, name, kind, access) in enumerate(everything)
    )
    return text, tuple(operand for operand, *_ in everything)


def _structs(pieces: Sequence[_Piece]) -> str:
    """Declarations of structs; those with equal members are the same."""
    made: dict[str, str] = {}
    for piece in pieces:
        while found := _STRUCT.search(piece.text):
            piece.text = piece.text.replace(found[0], "")
            piece.rename(found[1], made.setdefault(found[2], f"Struct{len(made)}"))
    return "".join(f"struct {name} {body}\n" for body, name in made.items())


def _shared(pieces: Sequence[_Piece]) -> str:
    """Declarations of shared memory: a workgroup is of one piece, so pieces have it in common."""
    arrays = [_SHARED.findall(piece.text) for piece in pieces]
    slots = _slots([[kind for _, kind in own] for own in arrays])
    for piece, own in zip(pieces, arrays, strict=True):
        piece.text = _SHARED.sub("", piece.text)
        taken: set[int] = set()
        for name, kind in sorted(own, key=lambda entry: -_slot(entry[1])[1]):
            inner = _slot(kind)[0]
            free = (n for n, slot in enumerate(slots) if slot[0] == inner and n not in taken)
            number = next(free)
            taken.add(number)
            piece.rename(name, f"shared{number}")
    return "".join(f"var<workgroup> shared{n}: {_kind(*slot)};\n" for n, slot in enumerate(slots))
