"""The compiled form of a graph: buffers, dispatches, storage. Immutable data, nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from engine.graph import TensorType
from engine.kernels.wgsl import Kernel

BufferIds = tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """One logical tensor in memory.

    `kind` is "parameter", "frozen", "input", "output", "gradient", "state", "constant" or
    "transient"; only transients share slabs.

    Buffers with the same `pack` lie one after another in one slab, in id order of declaration,
    so that a kernel may bind the whole pack as a single range.
    """

    id: int
    name: str
    kind: str
    type: TensorType
    pack: str = ""


@dataclass(frozen=True)
class Dispatch:
    """One kernel launch. Each binding is a tuple of buffers: one, or a contiguous run of a pack.

    Bindings are `reads` followed by `writes`; a written buffer may also be read by the kernel
    (an in-place update).
    """

    kernel: Kernel
    reads: tuple[BufferIds, ...]
    writes: tuple[BufferIds, ...]

    def read_ids(self) -> set[int]:
        """All buffers bound read-only."""
        return {b for binding in self.reads for b in binding}

    def write_ids(self) -> set[int]:
        """All buffers bound writable."""
        return {b for binding in self.writes for b in binding}


@dataclass(frozen=True)
class Slab:
    """One device allocation in bytes; `kind` is a buffer kind."""

    nbytes: int
    kind: str


@dataclass(frozen=True)
class Placement:
    """Where a buffer lives."""

    slab: int
    offset: int


@dataclass(frozen=True)
class Plan:
    """A static dispatch list with explicit ownership of every byte.

    `groups` are the indices at which barrier groups start: dispatches of one group neither read
    nor overwrite what another one of it writes. `tensors` maps each public name (parameters,
    inputs, outputs, state, and "gradient:NAME") to its buffer, and `types` to its type: names
    that view one buffer may differ in shape.
    """

    buffers: tuple[Buffer, ...]
    dispatches: tuple[Dispatch, ...]
    groups: tuple[int, ...]
    slabs: tuple[Slab, ...]
    placements: tuple[Placement, ...]
    tensors: Mapping[str, int]
    types: Mapping[str, TensorType]
    constants: Mapping[int, np.ndarray]

    def launches(self) -> list[range]:
        """Dispatches by launch: those that are parts of one belong together (see engine.split)."""
        found: list[range] = []
        first, done = 0, 0
        for index, dispatch in enumerate(self.dispatches):
            kernel = dispatch.kernel
            done += prod(kernel.grid)
            if done >= prod(kernel.whole or kernel.grid):
                found.append(range(first, index + 1))
                first, done = index + 1, 0
        return found

    def names(self, kind: str) -> list[str]:
        """Public names of a kind ("parameter", "frozen", "input", "state", ...), in order."""
        return [name for name, b in self.tensors.items() if self.buffers[b].kind == kind]

    def binding_bytes(self, dispatch: Dispatch) -> int:
        """Bytes that a launch binds, a part its share of them: what the cost model takes for
        memory traffic.
        """
        ids = [b for binding in (*dispatch.reads, *dispatch.writes) for b in binding]
        nbytes = sum(self.buffers[b].type.nbytes for b in ids)
        kernel = dispatch.kernel
        return nbytes * prod(kernel.grid) // prod(kernel.whole or kernel.grid)

    def memory_report(self) -> dict[str, dict[str, int]]:
        """Logical and physical bytes per buffer kind."""
        report: dict[str, dict[str, int]] = {}
        for buffer in self.buffers:
            row = report.setdefault(buffer.kind, {"logical": 0, "physical": 0})
            row["logical"] += buffer.type.nbytes
        for slab in self.slabs:
            report[slab.kind]["physical"] += slab.nbytes
        return report
