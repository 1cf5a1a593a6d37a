"""Device facts and the kernel choices made from them: one place, one immutable decision each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal, NamedTuple

from engine.product_cost import MATRIX_SUM_US, SUM_US, parts_bytes, predicted_us

Contract = Literal["strict", "accelerated"]
"""How products are computed: in f32, or with factors of 11 bits where that is faster."""


class MatmulKey(NamedTuple):
    """A matrix product as choices see it: `batch` times [m, k] x [k, n].

    `layout`: "n" or "t" for each operand as it lies in memory; "" for a product that reads its
    operands through index arithmetic, as a convolution does.
    """

    layout: str
    batch: int
    m: int
    n: int
    k: int


F16_PAD = 8
"""Elements after each row of f16 in shared memory, so that rows begin in different banks."""


@dataclass(frozen=True)
class MatrixUnits:
    """Units that multiply f16 matrices [m, k] and [k, n] for a subgroup, and add up in f32."""

    m: int
    n: int
    k: int
    subgroup_size: int


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
    matrix_units: MatrixUnits | None = None
    """Used under the contract accelerated only."""
    table: Mapping[MatmulKey, MatmulChoice] = field(default_factory=dict, hash=False)
    """Choices measured on this device, preferred to the usual ones: `engine.kernel_table`."""

    def under(self, contract: Contract) -> DeviceFacts:
        """What programs under a contract may use of the device."""
        return replace(self, matrix_units=None) if contract == "strict" else self


@dataclass(frozen=True)
class MatmulChoice:
    """How one matrix product is computed.

    `direct`: each invocation keeps a thread_m x thread_n tile in registers and reads operands
    straight from memory; for CPU devices, where barriers and shared memory cost more than they
    save. `tiled`: a workgroup stages tile_m x tile_k and tile_k x tile_n blocks in shared memory.
    `gemv`: for few rows (thread_m, all of them) or a single column (thread_n = 1), where reading
    the matrix is all that counts: tile_k / 4 invocations share k and add up in shared memory.
    `split_k` > 1 sums that many partial products in a second dispatch, for small grids. `matrix`:
    by `units`, of which `slices_k` share k.
    """

    variant: str
    tile_m: int
    tile_n: int
    tile_k: int
    thread_m: int
    thread_n: int
    split_k: int = 1
    slices_k: int = 1
    units: MatrixUnits | None = None

    @property
    def workgroup(self) -> int:
        """Invocations per workgroup."""
        if self.variant == "direct":
            return 64
        if self.units:
            return self.lanes * self.slices_k * self.units.subgroup_size
        return self.lanes * (self.lanes_k if self.variant == "gemv" else 1)

    @property
    def lanes(self) -> int:
        """Invocations side by side on a tile of the result."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @property
    def lanes_k(self) -> int:
        """Invocations that share k in the gemv variant; each takes vec4s of it."""
        return self.tile_k // 4

    @property
    def step_k(self) -> int:
        """Extent along k that is read at a time: beyond k it must be zero."""
        return self.tile_k if self.variant in ("tiled", "matrix") else 4

    @property
    def skew(self) -> int:
        """Vec4s between every four rows of a block in shared memory that is stored transposed:
        so many that the lanes side by side along k meet different banks.
        """
        return max(1, 32 // self.tile_k)

    @property
    def shared_bytes(self) -> int:
        """Shared memory that the variant needs, padding included."""
        if self.variant == "direct":
            return 0
        if self.variant == "gemv":
            return 4 * self.workgroup * self.thread_m * self.thread_n
        if self.units:
            rows = max(self.tile_m, self.tile_k) + max(self.tile_n, self.tile_k)
            staged = 2 * (self.tile_k * (self.tile_m + self.tile_n) + F16_PAD * rows)
            return staged + 32 + 4 * self.lanes * self.slices_k * self.units.m * self.thread_n
        return 4 * self.tile_k * (self.tile_m + self.tile_n + 2 * self.skew)

    def fits(self, facts: DeviceFacts) -> bool:
        """Whether the device has the invocations and the shared memory."""
        enough_memory = self.shared_bytes <= facts.max_shared_bytes
        return enough_memory and self.workgroup <= facts.max_invocations


TILES = (
    MatmulChoice("tiled", 128, 128, 16, 8, 8),
    MatmulChoice("tiled", 64, 64, 16, 8, 8),
    MatmulChoice("tiled", 64, 64, 32, 8, 4),
    MatmulChoice("tiled", 32, 64, 32, 4, 8),
    MatmulChoice("tiled", 32, 32, 32, 4, 4),
)
"""A sixth makes the workloads' products less than 0.5 % faster (docs/measurements.md). Devices that
allow the least can hold all but the first.
"""
MATRIX_TILES = (
    (128, 64, 64, 32, 32, 1),
    (64, 64, 64, 32, 16, 1),
    (64, 64, 32, 32, 16, 1),
    (64, 32, 128, 32, 16, 2),
    (32, 32, 128, 16, 16, 2),
)
"""Of matrix units: extents along m, n and k, a subgroup's part along m and n, and slices of k. A
sixth makes the products of the workloads no faster (docs/measurements.md). All have workgroups of
one size, so that launches can be merged.
"""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LEAST_K = 32
"""Of a part of k: below it there is nothing to gain."""
CHEAP_PARTS_BYTES = 8 << 20
"""Of all partial products of one product: beyond it they take no more memory than its operands."""
MOST_PARTS_BYTES = 32 << 20
"""They should stay in a large GPU's second-level cache."""
ENOUGH_WORKGROUPS = 96
"""Below this a current discrete GPU (80 to 140 multiprocessors) is mostly idle."""


FULL = 64 * 1024
"""Invocations that a current discrete GPU runs at a time, or half of them."""
GEMV_ROWS = 4
"""Up to so many rows, a matrix product is bound by reading the matrix."""


def choose_matmul(
    batch: int, m: int, n: int, k: int, facts: DeviceFacts, layout: str = ""
) -> MatmulChoice:
    """Kernel for `batch` products [m, k] x [k, n] on a device; `layout` as in MatmulKey."""
    key = MatmulKey(layout, batch, m, n, k)
    measured = facts.table.get(key)
    # A table may come from a larger device, or from other kernels.
    if measured is not None and measured in matmul_candidates(key, facts):
        return measured
    return _usual_matmul(key, facts)


def _usual_matmul(key: MatmulKey, facts: DeviceFacts) -> MatmulChoice:
    if facts.is_cpu:
        rows = 8 if key.m >= 8 else 4
        columns = 8 if key.n >= 8 else 4
        return MatmulChoice("direct", rows, columns, 4, rows, columns)
    if key.layout and (key.m <= GEMV_ROWS or key.n == 1):
        return _usual_gemv(key, facts)
    tiles = (*TILES, *matrix_tiles(facts.matrix_units))
    fitting = [tile for tile in tiles if tile.fits(facts)]
    choices = (choice for tile in fitting for choice in _in_parts(tile, key, facts))
    sum_us = MATRIX_SUM_US if facts.matrix_units else SUM_US
    return min(choices, key=lambda choice: predicted_us(key, choice, sum_us))


def matrix_tiles(units: MatrixUnits | None) -> Iterator[MatmulChoice]:
    """The tiles that a device's matrix units can compute."""
    for m, n, k, part_m, part_n, slices in MATRIX_TILES if units else ():
        assert units is not None
        if part_m % units.m == part_n % units.n == k % (units.k * slices) == 0:
            yield MatmulChoice("matrix", m, n, k, part_m, part_n, 1, slices, units)


def _in_parts(tile: MatmulChoice, key: MatmulKey, facts: DeviceFacts) -> Iterator[MatmulChoice]:
    """A tile with every sensible number of parts of k: none without work, none too short."""
    steps = ceil(key.k / tile.tile_k)
    operands = 4 * key.k * (key.m + key.n)
    most_bytes = min(max(operands, CHEAP_PARTS_BYTES), MOST_PARTS_BYTES, facts.max_binding_bytes)
    for split in SPLITS:
        busy = (split - 1) * ceil(steps / split) < steps and key.k >= LEAST_K * split
        small = parts_bytes(key, split) <= most_bytes
        if split == 1 or (key.batch == 1 and busy and small):
            yield replace(tile, split_k=split)


def _usual_gemv(key: MatmulKey, facts: DeviceFacts) -> MatmulChoice:
    column, along_k, quads = _gemv_geometry(key)
    most = min(256, facts.max_invocations)
    if along_k:
        # Each keeps a vec4 per row, and a square where it normalises rows.
        vectors = 1 if column else key.m
        while 20 * vectors * most > facts.max_shared_bytes:
            most //= 2
        lanes_k = min(most, _power_of_two(ceil(key.k / 4)))
        lanes = min(max(1, 64 // lanes_k), _power_of_two(quads))
    else:
        # Rows of the matrix are read in pieces of 64 or 128 bytes.
        lanes = min(8 if key.batch * quads >= 8 * ENOUGH_WORKGROUPS else 4, _power_of_two(quads))
        lanes_k = min(most // lanes, _power_of_two(ceil(key.k / 8)))
    groups = key.batch * ceil(quads / lanes)
    split = min(16, ceil(ENOUGH_WORKGROUPS / groups), key.k // (32 * lanes_k))
    return _gemv(key, column, lanes, lanes_k, max(1, split) if key.batch == 1 else 1)


def choose_for_rows(m: int, n: int, k: int, facts: DeviceFacts) -> MatmulChoice:
    """Gemv kernel for m rows that it makes itself, times a matrix [n, k]: k is not split.

    It also keeps a sum of squares per row and invocation.
    """
    key = MatmulKey("nt", 1, m, n, k)
    choice = replace(choose_matmul(*key[1:], facts, key.layout), split_k=1)
    if choice.variant == "gemv" and choice.shared_bytes * 5 // 4 <= facts.max_shared_bytes:
        return choice
    return replace(_usual_gemv(key, facts), split_k=1)


def _gemv_geometry(key: MatmulKey) -> tuple[bool, bool, int]:
    """Whether the result is taken as one column, whether the matrix lies along k, and the lanes'
    quads.
    """
    column = key.m > GEMV_ROWS
    along_k = key.layout[0] == "n" if column else key.layout[1] == "t"
    return column, along_k, ceil((key.m if column else key.n) / 4)


def _gemv(key: MatmulKey, column: bool, lanes: int, lanes_k: int, split_k: int) -> MatmulChoice:
    if column:
        return MatmulChoice("gemv", 4 * lanes, 1, 4 * lanes_k, 4, 1, split_k)
    return MatmulChoice("gemv", key.m, 4 * lanes, 4 * lanes_k, key.m, 4, split_k)


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


MORE_TILES = (
    MatmulChoice("tiled", 128, 64, 16, 8, 8),
    MatmulChoice("tiled", 64, 128, 16, 8, 8),
    MatmulChoice("tiled", 64, 64, 16, 8, 4),
    MatmulChoice("tiled", 64, 32, 32, 8, 4),
    MatmulChoice("tiled", 32, 32, 16, 4, 4),
)
"""Tiles that are better than TILES for some shapes on some devices: only measuring tells."""


def matmul_candidates(key: MatmulKey, facts: DeviceFacts) -> list[MatmulChoice]:
    """The usual choice, then every other that computes this product on this device."""
    usual = _usual_matmul(key, facts)
    others = dict.fromkeys(choice for choice in _variants(key, facts) if choice.fits(facts))
    return [usual, *(choice for choice in others if choice != usual)]


def _variants(key: MatmulKey, facts: DeviceFacts) -> Iterator[MatmulChoice]:
    for rows in (4, 8):
        for columns in (4, 8):
            yield MatmulChoice("direct", rows, columns, 4, rows, columns)
    if facts.is_cpu:
        return
    for tile in (*TILES, *MORE_TILES, *matrix_tiles(facts.matrix_units)):
        yield from _in_parts(tile, key, facts)
    if not key.layout or (key.m > GEMV_ROWS and key.n > 1):
        return
    column, _, quads = _gemv_geometry(key)
    most_splits = 1 if key.batch > 1 else max(1, key.k // 64)
    splits = [split for split in SPLITS[:4] if split <= most_splits]
    for lanes in (1, 2, 4, 8, 16, 32, 64):
        for lanes_k in (4, 8, 16, 32, 64, 128, 256):
            sensible = lanes < 2 * quads and 2 * lanes_k <= key.k and 32 <= lanes * lanes_k <= 256
            if sensible:
                yield from (_gemv(key, column, lanes, lanes_k, split) for split in splits)


def row_lanes(columns: int, facts: DeviceFacts, rows: int = FULL) -> int:
    """Invocations that share one row in softmax and normalisation kernels; a power of two.

    Where `rows` are too few to fill a device, each invocation has less to do.
    """
    if facts.is_cpu:
        return 1
    lanes = 32
    while lanes < min(256, facts.max_invocations) and (
        lanes * 4 < columns or (lanes < columns and 2 * lanes * rows <= FULL)
    ):
        lanes *= 2
    return lanes


def group_slices(groups: int, elements: int, facts: DeviceFacts) -> int:
    """Slices into which each of `groups` normalised groups is cut; 1: no launch for moments."""
    smallest, wanted = (1024, 1024) if facts.is_cpu else (4096, 2 * ENOUGH_WORKGROUPS)
    if elements < 4 * smallest:
        return 1
    return max(1, min(64, elements // smallest, ceil(wanted / groups)))
