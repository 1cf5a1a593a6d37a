"""Parameters and inputs of a job: the same in every runner, and in no file but published ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.record import Job, Phase
from models.hashing import hash_uniform
from models.layouts import Layout
from models.published import load_published
from models.workload import Network, Workload
from models.zoo import WORKLOADS

SPREAD = 0.2
"""How far the vectors of reduced networks are from where published ones start."""


def sized(job: Job, phase: Phase) -> tuple[Workload[Any], Any]:
    """The job's workload and its size in a phase."""
    workload = WORKLOADS[job.workload]
    if job.reduced:
        return workload, workload.reduced
    return workload, workload.latency if phase is Phase.MINIMAL else workload.full


def network_of(job: Job, phase: Phase) -> Network:
    """The network of a phase; its layouts name all parameters, its graph the inputs."""
    workload, config = sized(job, phase)
    return workload.training(config) if phase is Phase.TRAINING else workload.inference(config)


def parameter(job: Job, name: str, layout: Layout) -> np.ndarray:
    """A parameter in its native layout, f32.

    At full size the published start, or the job's file. The start would let signals die in a
    reduced network, and with them whatever a gate could see, so there every layer keeps the size of
    what it is given.
    """
    if job.weights:
        return layout.to_native(_kept(job.workload, Path(job.weights))[name])
    workload = WORKLOADS[job.workload]
    if not job.reduced:
        return layout.to_native(workload.parameter(name, layout))
    shape = layout.native
    if len(shape) == 1:
        return np.float32(workload.fixed(name) or 0.0) + hash_uniform(name, shape, SPREAD)
    fan_in = shape[0] if len(shape) == 2 else prod(shape[1:])
    return hash_uniform(name, shape, sqrt(3 / fan_in))


def published(workload: str, path: Path) -> Mapping[str, np.ndarray]:
    """Parameters of a workload's full network from a file, as the engine has them.

    Raises CheckpointError.
    """
    known = WORKLOADS[workload]
    return load_published(workload, known.name, known.inference(known.full).layouts, path)


_kept = functools.lru_cache(maxsize=1)(published)
"""The same for a runner, which asks for every parameter in every phase."""
