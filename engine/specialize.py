"""Device facts and the kernel choices made from them: one place, one immutable decision each."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class DeviceFacts:
    """What the compiler needs to know of a device; sizes in bytes."""

    name: str = "portable"
    is_cpu: bool = False
    max_invocations: int = 256
    max_shared_bytes: int = 16384
    max_storage_buffers: int = 8
    storage_alignment: int = 256
    max_binding_bytes: int = 128 << 20
    max_buffer_bytes: int = 256 << 20


@dataclass(frozen=True)
class MatmulChoice:
    """How one matrix product is computed.

    `direct`: each invocation keeps a thread_m x thread_n tile in registers and reads operands
    straight from memory; for CPU devices, where barriers and shared memory cost more than they
    save. `tiled`: a workgroup stages tile_m x tile_k and tile_k x tile_n blocks in shared memory.
    `split_k` > 1 sums that many partial products in a second dispatch, for small grids.
    """

    variant: str
    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int
    split_k: int = 1

    @property
    def workgroup(self) -> int:
        """Invocations per workgroup."""
        if self.variant == "direct":
            return 64
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def shared_bytes(self) -> int:
        """Shared memory that the tiled variant needs, padding included."""
        return 4 * self.tile_k * (self.tile_m + 4 + self.tile_n + 4)


TILES = (
    MatmulChoice("tiled", 128, 128, 8, 8, 8),
    MatmulChoice("tiled", 64, 64, 16, 4, 4),
    MatmulChoice("tiled", 32, 32, 32, 4, 4),
)
ENOUGH_WORKGROUPS = 96
"""Below this a current discrete GPU (80 to 140 multiprocessors) is mostly idle."""


def choose_matmul(batch: int, m: int, n: int, k: int, facts: DeviceFacts) -> MatmulChoice:
    """Kernel for `batch` products [m, k] x [k, n] on a device."""
    if facts.is_cpu:
        rows = 8 if m >= 8 else 4
        columns = 8 if n >= 8 else 4
        return MatmulChoice("direct", rows, columns, 4, rows, columns)
    fitting = [
        tile
        for tile in TILES
        if tile.workgroup <= facts.max_invocations and tile.shared_bytes <= facts.max_shared_bytes
    ]
    for tile in fitting:
        if batch * ceil(m / tile.tile_m) * ceil(n / tile.tile_n) >= ENOUGH_WORKGROUPS:
            return tile
    smallest = fitting[-1]
    groups = batch * ceil(m / smallest.tile_m) * ceil(n / smallest.tile_n)
    if batch > 1 or k < 512:
        return smallest
    split = max(1, min(16, ceil(2 * ENOUGH_WORKGROUPS / groups), k // 128))
    return MatmulChoice("tiled", 32, 32, 32, 4, 4, split)


def row_lanes(columns: int, facts: DeviceFacts) -> int:
    """Invocations that share one row in softmax and normalisation kernels; a power of two."""
    if facts.is_cpu:
        return 1
    lanes = 32
    while lanes < min(256, facts.max_invocations) and lanes * 4 < columns:
        lanes *= 2
    return lanes
