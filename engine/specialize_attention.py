"""How attention and its gradients are computed on a device: tile forms and splits by shape.

The forms and the numbers of the rule come from measurements (docs/measurements.md, "Attention").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from engine.specialize import F16_PAD, DeviceFacts, MatrixUnits


class StreamKey(NamedTuple):
    """A kernel of `engine.kernels.streaming` as choices see it.

    `heads` times `rows` rows of `width` elements own accumulators and each scores `others` streamed
    rows of each of `members` heads; `owned` matrices are read by owned rows: one in attention
    itself, two in its gradients.
    """

    heads: int
    rows: int
    others: int
    width: int
    members: int
    owned: int


@dataclass(frozen=True)
class AttentionChoice:
    """How one kernel of attention or its gradient is computed (`engine.kernels.streaming_*`).

    A workgroup owns `rows` rows, an invocation four of them; `columns` streamed rows are taken at
    a time. `direct`: they are read from memory. `tiled`: they are staged in shared memory, `slice`
    elements of the width at a time, and `lanes` invocations share the same four rows; `resident`:
    owned rows stay in shared memory, otherwise they too are staged by slices. `splits` > 1: so many
    workgroups share the streamed rows of one block of owned rows, and a second launch merges their
    results.
    """

    variant: str
    rows: int
    columns: int
    lanes: int = 1
    slice: int = 4
    resident: bool = False
    splits: int = 1
    units: MatrixUnits | None = None

    @property
    def workgroup(self) -> int:
        """Invocations per workgroup."""
        return self.rows // 4 * self.lanes

    @property
    def stride(self) -> int:
        """Row length of the weights in shared memory, in vec4s: with the order of invocations in
        `streaming_tiled`, neighbours write and read different banks.
        """
        quads = self.rows // 4
        return quads + (2 - quads) % 8

    def shared_bytes(self, width: int, owned: int) -> int:
        """Shared memory that the tiled variant needs for rows of `width` elements."""
        if self.units:
            return self._units_bytes(width, owned)
        quads = ceil(width / 4)
        part = slice_quads(width, self.slice)
        own_tiles = owned * odd(quads) if self.resident else odd(part)
        staged = max(self.columns * odd(part), odd(quads))
        weights = self.columns * self.stride
        return 16 * (self.rows * own_tiles + staged + weights + self.workgroup)

    def _units_bytes(self, width: int, owned: int) -> int:
        staged = 4 * max(self.rows, self.columns) * (width + F16_PAD)
        scores = 4 * owned * self.rows * (self.columns + 4)
        weights = 2 * self.rows * (self.columns + F16_PAD)
        return staged + scores + weights + 16 * self.workgroup + 4 * self.rows + 128

    def fits(self, key: StreamKey, facts: DeviceFacts) -> bool:
        """Whether the device has the invocations and the shared memory; kept rows have whole
        slices.
        """
        whole = ceil(key.width / 4) % slice_quads(key.width, self.slice) == 0
        enough = self.shared_bytes(key.width, key.owned) <= facts.max_shared_bytes
        return (whole or not self.resident) and enough and self.workgroup <= facts.max_invocations


def odd(extent: int) -> int:
    """A row length in quads that spreads the same quad of neighbouring rows over all banks."""
    return extent | 1


def slice_quads(width: int, most: int) -> int:
    """Quads staged at a time, `most` elements at most: slices are as equal as they can be."""
    quads = ceil(width / 4)
    return ceil(quads / ceil(4 * quads / most))


MANY_ROWS = AttentionChoice("tiled", 64, 32, 8)
FEW_ROWS = AttentionChoice("tiled", 32, 32, 16)
FEW_QUERIES = AttentionChoice("tiled", 32, 64, 16)
NARROW = AttentionChoice("tiled", 32, 32, 8)
FEW_NARROW = AttentionChoice("tiled", 16, 16, 8)
LITTLE_MEMORY = replace(NARROW, slice=32)
"""Fits every device and every width up to 128."""

LEAST_PAIRS = 1 << 20
"""Of owned and streamed rows, for matrix units: fewer take no longer without."""
LEAST_KEPT_PAIRS = 3 << 18
"""Of queries and keys of all heads, for kept weights: the fewest measured to gain."""
MOST_KEPT_BYTES = 64 << 20
"""Of kept weights, about a large GPU's second-level cache; all other memory of attention is linear
in the number of rows.
"""
GRADIENT_BINDINGS = 9
"""Of the kernel that keeps weights."""
MANY_BLOCKS = 128
"""Pairs of blocks of MANY_ROWS from which on its larger tiles keep a device busy."""
FULL = 72 * 1024
"""Invocations that fill a current discrete GPU (80 to 140 multiprocessors)."""
MOST_SPLITS = 8
WORTH_A_LAUNCH = 3
"""Blocks of streamed rows that pass in the time of the second launch."""


def choose_attention(key: StreamKey, facts: DeviceFacts) -> AttentionChoice:
    """Kernel for a device."""
    if facts.is_cpu:
        return AttentionChoice("direct", 32, 1)
    by_units = _by_units(key, facts)
    if by_units is not None:
        return by_units
    choice = _staged(_form(key), key, facts) or _staged(NARROW, key, facts) or LITTLE_MEMORY
    return replace(choice, splits=_splits(choice, key))


def _by_units(key: StreamKey, facts: DeviceFacts) -> AttentionChoice | None:
    """Matrix units, where they can and are worth it."""
    u = facts.matrix_units
    pairs = key.heads * key.members * key.rows * key.others
    if u is None or key.width % u.k or key.width % u.n or pairs < LEAST_PAIRS:
        return None
    lanes = 4 * u.subgroup_size // u.m
    units = 4 if key.owned == 1 else 2
    choice = AttentionChoice("matrix", units * u.m, units * u.n, lanes, key.width, units=u)
    if not choice.fits(key, facts):
        return None
    return replace(choice, splits=_splits(choice, key))


def keep_weights(pairs: int, facts: DeviceFacts) -> bool:
    """Whether the gradient of keys keeps its weights in memory, so that the gradient of queries is
    one product instead of three with exponentials; `pairs` of queries and keys of all heads, these
    in whole blocks.
    """
    # Matrix units score again in the time that keeping takes.
    scoring_is_dear = not facts.is_cpu and facts.matrix_units is None
    small = 4 * pairs <= min(MOST_KEPT_BYTES, facts.max_binding_bytes)
    binds = GRADIENT_BINDINGS <= facts.max_storage_buffers
    return scoring_is_dear and pairs >= LEAST_KEPT_PAIRS and small and binds


def _form(key: StreamKey) -> AttentionChoice:
    gradient = key.owned > 1
    if key.width <= 32:
        return FEW_NARROW if gradient and key.heads * key.rows <= 768 else NARROW
    blocks = ceil(key.rows / MANY_ROWS.rows) * ceil(key.others / MANY_ROWS.columns)
    if key.width <= 64 and key.heads * key.members * blocks >= MANY_BLOCKS:
        return MANY_ROWS
    narrow_enough = key.width <= 64 and key.others > FEW_ROWS.columns
    return FEW_QUERIES if narrow_enough and not gradient else FEW_ROWS


def _staged(form: AttentionChoice, key: StreamKey, facts: DeviceFacts) -> AttentionChoice | None:
    """The form with slices as wide, and as much kept, as fits."""
    for width in (128, 64, 32):
        for resident in (True, False):
            choice = replace(form, slice=width, resident=resident)
            if choice.fits(key, facts):
                return choice
    return None


def _splits(choice: AttentionChoice, key: StreamKey) -> int:
    """Workgroups per block of owned rows: a full device, if that saves more than it costs."""
    blocks = key.members * ceil(key.others / choice.columns)
    invocations = key.heads * ceil(key.rows / choice.rows) * choice.workgroup
    splits = 1
    while 2 * splits <= min(MOST_SPLITS, blocks) and 2 * splits * invocations <= FULL:
        splits *= 2
    return splits if blocks - ceil(blocks / splits) >= WORTH_A_LAUNCH else 1
