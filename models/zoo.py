"""Programs and workloads that can be named on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.graph import Graph
from engine.optim import Adam
from models.resnet50 import RESNET50
from models.smollm2 import SMOLLM2
from models.smolvla import SMOLVLA
from models.unet import UNET
from models.vision import DINOVISION, IMAGE, inference_graph, training_graph
from models.whisper import WHISPER
from models.workload import Workload

WORKLOADS: dict[str, Workload[Any]] = {
    "smollm2": SMOLLM2,
    "smolvla": SMOLVLA,
    "unet": UNET,
    "resnet50": RESNET50,
    "whisper": WHISPER,
    "dinovision": DINOVISION,
}
"""The networks of the benchmark: the five published ones and the program's own."""


@dataclass(frozen=True)
class Program:
    """A graph that depends on one size."""

    about: str
    build: Callable[[int], Graph]
    """The graph of a given size."""
    size: int
    """The size in use."""
    reduced: Callable[[], Graph]
    """A graph of the same structure that a float64 interpreter computes within seconds."""
    below: Mapping[str, int] = field(default_factory=dict)
    """Exclusive upper bounds of u32 inputs (labels, tokens) by name."""


def _programs(
    key: str, workload: Workload[Any], size: int, what: str, **below: int
) -> dict[str, Program]:
    """Training and inference of a workload."""
    return {
        f"{key}-train": Program(
            f"loss and gradients of {workload.name}; size: {what}",
            lambda size: workload.training(workload.sized(size)).graph,
            size,
            lambda: workload.training(workload.reduced).graph,
            below,
        ),
        f"{key}-infer": Program(
            f"output of {workload.name}; size: {what}",
            lambda size: workload.inference(workload.sized(size)).graph,
            size,
            lambda: workload.inference(workload.reduced).graph,
            below,
        ),
    }


PROGRAMS: dict[str, Program] = {
    "train": Program(
        "DinoVision's learning step; size: image side in pixels, a multiple of 16",
        lambda size: training_graph(Adam(), size=size),
        IMAGE,
        lambda: training_graph(Adam(), size=32),
    ),
    "infer": Program(
        "DinoVision's painting; size: image side in pixels, a multiple of 16",
        lambda size: inference_graph(size=size),
        IMAGE,
        lambda: inference_graph(size=32),
    ),
    **_programs("smollm2", SMOLLM2, 128, "tokens", ids=37, labels=37),
    **_programs("smolvla", SMOLVLA, 50, "actions"),
    **_programs("unet", UNET, 32, "pixels a side of the latent, a multiple of 4"),
    **_programs("resnet50", RESNET50, 224, "pixels a side", labels=7),
    **_programs("whisper", WHISPER, 3000, "frames, an even number"),
}
