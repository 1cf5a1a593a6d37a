"""How long a tiled matrix product takes: the model by which its tile and its parts are chosen.

A multiprocessor holds its share of the workgroups at once. A step along k takes as long as a
workgroup waits in it for memory, or as the arithmetic units need for all workgroups, whichever is
longer. Splitting k makes more and shorter workgroups, so that no multiprocessor is idle, and costs
a second launch.

The constants are a fit to 630 measurements of 93 products of the five workloads on a GPU of 132
multiprocessors (docs/measurements.md). Another GPU has other times, but what matters here are
ratios, and where a device is smaller, the same choices keep it busy; it may sum parts that it could
do without, and `tune` finds out.
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

MATRIX_SPEEDS = {
    (128, 64, 64): TileSpeed(72.5e6, 0.2),
    (64, 32, 64): TileSpeed(49.1e6, 0.2),
}
"""The same of matrix units, by 10 products."""


def predicted_us(key: MatmulKey, choice: MatmulChoice) -> float:
    """Microseconds of a product by one of the tiles in SPEEDS or MATRIX_SPEEDS."""
    c = choice
    speeds = MATRIX_SPEEDS if c.units else SPEEDS
    speed = speeds[c.tile_m, c.tile_n, c.tile_k]
    groups = key.batch * ceil(key.m / c.tile_m) * ceil(key.n / c.tile_n) * c.split_k
    # Between the mean and the fullest: the last workgroups of a launch run beside fewer others.
    mean = groups / MULTIPROCESSORS
    share = max(1.0, (mean + ceil(mean)) / 2)
    flops = 2 * c.tile_m * c.tile_n * c.tile_k
    arithmetic_us = share * flops * MULTIPROCESSORS / speed.flops_per_us
    # A maximum that rounds the corner: near it the two hide each other only in part.
    step_us = (speed.step_us**4 + arithmetic_us**4) ** 0.25
    steps = ceil(ceil(key.k / c.tile_k) / c.split_k)
    product_us = LAUNCH_US + steps * step_us
    if c.split_k == 1:
        return product_us
    return product_us + SUM_US + parts_bytes(key, c.split_k + 1) / SUM_BYTES_PER_US


def parts_bytes(key: MatmulKey, count: int) -> int:
    """Bytes of `count` partial products."""
    return 4 * count * key.batch * key.m * key.n
