"""Finding the render load that takes a wanted share of the refresh period."""

from __future__ import annotations

import math
from collections.abc import Callable

MAX_LOAD = 1_000_000
FIRST_LOAD = 8
GROWTH = 16
"""A load is at most so many times one that was measured below the target: no hung device."""


def calibrate_load(
    measure: Callable[[int], float],
    target_ms: float,
    *,
    tolerance: float = 0.03,
    measurements: int = 12,
    max_load: int = MAX_LOAD,
) -> int:
    """The render load whose GPU time is about `target_ms`.

    `measure(load)` returns the GPU time of the eyes in ms, best a median over frames; it should
    rise about linearly and may be noisy. It is called at most `measurements` times, until a time
    lies within `tolerance` (relative) of the target; else the load measured nearest is returned.
    So 0 is returned when the bare scene already takes longer, `max_load` when that is too little.

    Raises ValueError for a target, tolerance or count that is not above 0, and for a measured time
    that is no time.
    """
    if not (0 < target_ms < math.inf and tolerance > 0 and measurements > 0 and max_load > 0):
        raise ValueError("target_ms, tolerance, measurements and max_load must be above 0")
    measured: dict[int, float] = {}
    load = 0
    while load not in measured and len(measured) < measurements:
        ms = measure(load)
        if not 0 <= ms < math.inf:
            raise ValueError(f"no GPU time was measured at a render load of {load}: got {ms}")
        measured[load] = ms
        if abs(ms - target_ms) <= tolerance * target_ms or measured[0] > target_ms:
            break
        load = _next_load(measured, target_ms, tolerance, max_load)
    return min(measured, key=lambda known: abs(measured[known] - target_ms))


def _next_load(
    measured: dict[int, float], target_ms: float, tolerance: float, max_load: int
) -> int:
    """Where a line through the measurements meets the target; those near it count most."""
    safe = GROWTH * max(load for load, ms in measured.items() if ms < target_ms)
    most = min(max(safe, FIRST_LOAD), max_load)
    if len(measured) == 1:
        return most
    weights = {load: (tolerance + abs(ms / target_ms - 1)) ** -2 for load, ms in measured.items()}
    total = sum(weights.values())
    mean_load = sum(weights[load] * load for load in measured) / total
    mean_ms = sum(weights[load] * ms for load, ms in measured.items()) / total
    spread = sum(weights[load] * (load - mean_load) ** 2 for load in measured)
    rise = sum(weights[load] * (load - mean_load) * (ms - mean_ms) for load, ms in measured.items())
    if rise <= 0:
        return most
    return min(max(round(mean_load + (target_ms - mean_ms) * spread / rise), 1), most)
