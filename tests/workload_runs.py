"""What tests of workloads share: random values for a reduced network, in native layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.workload import Network, Workload

Values = dict[str, np.ndarray]


def random_inputs(workload: Workload[Any], bound: int, rng: np.random.Generator) -> Values:
    """Values of the reduced network's inputs; integers stay below `bound` and repeat."""
    made = {}
    for name, value in workload.inputs(workload.reduced).items():
        if value.dtype.kind == "u":
            made[name] = rng.integers(bound, size=value.shape, dtype=np.uint32)
        else:
            made[name] = rng.normal(0, 1, value.shape).astype(np.float32)
    return made


def random_parameters(network: Network, rng: np.random.Generator) -> Values:
    """Values in native layouts: the weights of norms near 1, everything else near 0."""
    made = {}
    for name, layout in network.layouts.items():
        centre = 1.0 if "norm" in name and name.endswith(".weight") else 0.0
        made[name] = rng.normal(centre, 0.25, layout.native).astype(np.float32)
    return made


def stored(network: Network, native: Values) -> Values:
    """Parameters as the engine stores them."""
    return {name: network.layouts[name].to_engine(value) for name, value in native.items()}
