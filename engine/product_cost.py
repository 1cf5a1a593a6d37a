"""How long a product by a tile takes: the model by which tiles and parts of k are chosen.

A multiprocessor holds its share of the workgroups at once. In a tiled kernel, a step along k takes
as long as a workgroup waits in it for memory, or as the arithmetic units need for all workgroups,
whichever is longer. Matrix units are so fast that the two do not hide each other, and that what a
workgroup does before its first step and after its last counts as well. Splitting k makes more and
shorter workgroups, so that no multiprocessor is idle, and costs a second launch.

The constants are fits to measurements of products of the five workloads on a GPU of 132
multiprocessors: 630 of 93 products for tiled kernels, 490 of 33 for those of matrix units
(docs/measurements.md). Another GPU has other times, but what matters here are ratios, and where a
device is smaller, the same choices keep it busy; it may sum parts that it could do without, and
`tune` finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.specialize import MatmulChoice, MatmulKey

MULTIPROCESSORS = 132
"""Of the devices to keep busy: current discrete GPUs have 80 to 140."""
LAUNCH_US = 1.8
SUM_US = 2.4
"""The second launch of a split product, its bytes aside."""
SUM_BYTES_PER_US = 3.5e6


@dataclass(frozen=True)
class TileSpeed:
    """What a tile reaches on the whole device in the long run, and the least time of a step."""

    flops_per_us: float
    step_us: float


SPEEDS = {
    (128, 128, 16): TileSpeed(34.5e6, 0.5),
    (64, 64, 16): TileSpeed(30.5e6, 1.1),
    (64, 64, 32): TileSpeed(28.5e6, 0.8),
    (32, 64, 32): TileSpeed(25.5e6, 1.15),
    (32, 32, 32): TileSpeed(23e6, 0.8),
}
"""By extents along m, n and k."""


@dataclass(frozen=True)
class UnitsSpeed:
    """Of one workgroup: what a step takes alone and what it takes from others on the same
    multiprocessor, and what its beginning and end do.
    """

    wait_us: float
    work_us: float
    ends_us: float


MATRIX_SPEEDS = {
    (128, 64, 64): UnitsSpeed(0.28, 1.05, 2.95),
    (64, 64, 64): UnitsSpeed(0.20, 0.78, 1.75),
    (64, 64, 32): UnitsSpeed(0.42, 0.28, 0.85),
    (64, 32, 128): UnitsSpeed(0.26, 0.92, 1.57),
    (32, 32, 128): UnitsSpeed(0.25, 0.64, 1.07),
}
"""The same of matrix units."""
MATRIX_SUM_US = 3.5
"""Instead of SUM_US, of all products where there are matrix units: Dawn's launches take longer."""


def predicted_us(key: MatmulKey, choice: MatmulChoice, sum_us: float = SUM_US) -> float:
    """Microseconds of a product by one of the tiles in SPEEDS or MATRIX_SPEEDS."""
    c = choice
    groups = key.batch * ceil(key.m / c.tile_m) * ceil(key.n / c.tile_n) * c.split_k
    # Between the mean and the fullest: the last workgroups of a launch run beside fewer others.
    mean = groups / MULTIPROCESSORS
    share = (mean + ceil(mean)) / 2
    steps = ceil(ceil(key.k / c.tile_k) / c.split_k)
    product_us = _units_us(c, share, steps) if c.units else _tiled_us(c, share, steps)
    if c.split_k == 1:
        return product_us
    return product_us + sum_us + parts_bytes(key, c.split_k + 1) / SUM_BYTES_PER_US


def _tiled_us(c: MatmulChoice, share: float, steps: int) -> float:
    speed = SPEEDS[c.tile_m, c.tile_n, c.tile_k]
    flops = 2 * c.tile_m * c.tile_n * c.tile_k
    arithmetic_us = max(1.0, share) * flops * MULTIPROCESSORS / speed.flops_per_us
    # A maximum that rounds the corner: near it the two hide each other only in part.
    return LAUNCH_US + steps * (speed.step_us**4 + arithmetic_us**4) ** 0.25


def _units_us(c: MatmulChoice, share: float, steps: int) -> float:
    speed = MATRIX_SPEEDS[c.tile_m, c.tile_n, c.tile_k]
    return LAUNCH_US + steps * (speed.wait_us + speed.work_us * share) + speed.ends_us * share


def parts_bytes(key: MatmulKey, count: int) -> int:
    """Bytes of `count` partial products."""
    return 4 * count * key.batch * key.m * key.n
