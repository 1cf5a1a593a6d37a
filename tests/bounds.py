"""Kernels that tell whether an index leaves its array, and begin with garbage in shared memory: on
devices as the engine opens them nothing checks the one, nor clears the other.

The index of every storage and workgroup array goes through a function that notes whether it is
beyond the end, and stays within; a binding after the kernel's own gets the answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from engine.bind_groups import BufferRange
from engine.gpu import Gpu, Launch
from engine.pipelines import Program

_ARRAY = re.compile(r"var<(?:storage|workgroup)[^>]*> (\w+): ([^;]*);")
_STRUCT = re.compile(r"struct (\w+) \{ rows: (.*?)(?:, skew: [^}]*)? \}")
_SHARED = re.compile(r"var<workgroup> (\w+): ([^;]*);")
_GARBAGE = {
    "f32": "nan",
    "f16": "f16(nan)",
    "vec2<f32>": "vec2<f32>(nan)",
    "vec4<f32>": "vec4<f32>(nan)",
    "u32": "nan_bits",
    "vec4<u32>": "vec4<u32>(nan_bits)",
}
_ENTRY = re.compile(r"@compute @workgroup_size\((\d+)\)\nfn main\((.*)\) \{")
_CHECK = """
@group(0) @binding({binding}) var<storage, read_write> left: array<u32>;
var<private> leaves: bool;
fn within(i: u32, count: u32) -> u32 {{
    leaves = leaves || i >= count;
    return min(i, count - 1u);
}}
fn inner(from_base: vec3<u32>, t: u32) {{"""
_MAIN = """
var<private> nan_bits: u32 = 0x7fc00000u;
{entry}
    let nan = bitcast<f32>(nan_bits);
    {garbage}
    inner(from_base, t);
    if (leaves) {{ left[{number}] = 1u; }}
}}
"""


def checked(source: str, binding: int, number: int) -> str:
    """The kernel with checked indices; sets element `number` of an array at `binding` if one
    leaves its array.
    """
    rows = dict(_STRUCT.findall(source))
    arrays = {name: kind for name, kind in _ARRAY.findall(source) if kind.startswith("array<")}
    access = re.compile(rf"(?<![\w.&])({'|'.join(arrays)})(?=\[)")
    entry = _ENTRY.search(source)
    assert entry and arrays, source
    head = _CHECK.format(binding=binding)
    fills = [
        _fill(name, kind, rows, f"t; {{}} < {{}}; {{}} += {entry[1]}u")
        for name, kind in _SHARED.findall(source)
    ]
    garbage = " ".join([*fills, "workgroupBarrier();"] if fills else [])
    return _rewritten(_ENTRY.sub(head, source), access, arrays, rows) + _MAIN.format(
        entry=entry[0], number=number, garbage=garbage
    )


def _fill(place: str, kind: str, rows: dict[str, str], steps: str = "0u; {} < {}; {}++") -> str:
    """WGSL that fills a variable with NaN, together; `steps` of the outermost loop."""
    if kind in rows:
        return _fill(f"{place}.rows", rows[kind], rows, steps)
    if kind.startswith("array<"):
        element, _, length = _split(kind)
        i = f"i{place.count('[')}"
        inside = _fill(f"{place}[{i}]", element, rows)
        return f"for (var {i} = {steps.format(i, f'u32({length})', i)}) {{ {inside} }}"
    if kind == "atomic<u32>":
        return f"atomicStore(&{place}, nan_bits);"
    guard = "" if "[" in place else "if (t == 0u) "
    return f"{guard}{{ {place} = {_GARBAGE[kind]}; }}"


def _rewritten(
    text: str, access: re.Pattern[str], arrays: dict[str, str], rows: dict[str, str]
) -> str:
    """`text` with checked indices of `arrays`, given by their types; `rows` of structs."""
    done, at = "", 0
    while found := access.search(text, at):
        done += text[at : found.end()]
        at, kind = found.end(), arrays[found[1]]
        while text[at] == "[" and kind.startswith("array<"):
            element, _, length = _split(kind)
            end = _closing(text, at)
            index = _rewritten(text[at + 1 : end], access, arrays, rows)
            count = f"u32({length})" if length else f"arrayLength(&{found[1]})"
            done += f"[within(u32({index}), {count})]"
            at, kind = end + 1, element
            if kind in rows and text.startswith(".rows", at):
                done, at, kind = done + ".rows", at + len(".rows"), rows[kind]
    return done + text[at:]


def _split(kind: str) -> tuple[str, str, str]:
    """Element type and length, perhaps empty, of an array type."""
    inner = kind.removeprefix("array<").removesuffix(">")
    element, comma, length = inner.rpartition(", ")
    return (element, comma, length) if comma else (inner, "", "")


def _closing(text: str, at: int) -> int:
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if depth == 0:
            return end
    raise ValueError(f"no closing bracket: {text[at : at + 80]}")


class Watched:
    """What a device's checked kernels found; see `watching`."""

    MOST = 4096

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.programs: dict[Program, int] = {}
        self.buffer = gpu.storage_buffer(4 * self.MOST)

    def checked(self, launch: Launch) -> Launch:
        """A launch of the same kernel, checked."""
        program = launch.program
        number = self.programs.setdefault(program, len(self.programs))
        source = checked(program.source, program.reads + program.writes, number)
        everything = BufferRange(self.buffer, 0, 4 * self.MOST)
        return replace(
            launch,
            program=replace(program, source=source, writes=program.writes + 1),
            writes=[*launch.writes, everything],
        )

    def left(self) -> list[str]:
        """Labels of the kernels that left an array so far."""
        found = np.frombuffer(self.gpu.queue.read_buffer(self.buffer), np.uint32)
        return [program.label for program, number in self.programs.items() if found[number]]


@contextmanager
def watching(gpu: Gpu) -> Iterator[Watched]:
    """All launches that the device makes meanwhile are checked."""
    watched = Watched(gpu)
    make, compiling = gpu.commands, gpu.compile

    def compile_checked(programs: Collection[Program]) -> None:
        compiling([program for program in programs if "fn within(" in program.source])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "compile", compile_checked)
        patch.setattr(gpu, "commands", lambda launches: make([*map(watched.checked, launches)]))
        yield watched
