"""Values for reduced workloads at which nothing is degenerate."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from models.workload import Network, Workload


def draw_parameters(network: Network, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Native f32 parameters such that each layer roughly keeps the size of what it is given."""
    values = {}
    for name, layout in network.layouts.items():
        shape = layout.native
        value = rng.standard_normal(shape)
        if len(shape) == 1:
            value = 0.2 * value + ("norm" in name and name.endswith(".weight"))
        else:
            value /= np.sqrt(shape[0] if len(shape) == 2 else prod(shape[1:]))
        values[name] = value.astype(np.float32)
    return values


def draw_inputs(
    workload: Workload[Any], config: Any, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Inputs like the workload's: f32 ones are random, integers are kept."""
    given = workload.inputs(config)
    return {
        name: rng.standard_normal(value.shape).astype(np.float32)
        if value.dtype.kind == "f"
        else value
        for name, value in given.items()
    }
