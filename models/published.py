"""Published weights for the networks of the benchmark, by the names of `models.zoo.WORKLOADS`.

SmolLM2 as `HuggingFaceTB/SmolLM2-135M` has it, SmolVLA's expert as `lerobot/smolvla_base`, the
encoder of `openai/whisper-tiny`, and ResNet-50 with the names of torchvision, whose batch norms are
folded into the convolutions before them. The U-Net is this benchmark's own: nobody publishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from engine.errors import CheckpointError
from models.layouts import Layout
from models.weight_files import Weights, read_weights

Layouts = Mapping[str, Layout]
Values = dict[str, np.ndarray]

BATCH_NORM_EPS = 1e-5
FUSED_BIAS = ".fused_bias"
MOMENTS = ("weight", "bias", "running_mean", "running_var")


def load_published(workload: str, what: str, layouts: Layouts, path: Path) -> Values:
    """All parameters of a workload's network from a published file, f32 as the engine has them.

    `layouts`: the network's; `what` names it in errors. Raises CheckpointError when nothing of the
    kind is published, and for a file that cannot be read or is of another network.
    """
    if workload not in READERS:
        known = ", ".join(READERS)
        raise CheckpointError(f"no published weights fit '{workload}': they do for {known}")
    values = READERS[workload](Weights(read_weights(path), what), layouts)
    return {name: layouts[name].from_torch(value) for name, value in values.items()}


def _by_name(weights: Weights, layouts: Layouts) -> Values:
    """Every parameter has its own name in the file."""
    return weights.take({name: layout.torch for name, layout in layouts.items()})


def _whisper(weights: Weights, layouts: Layouts) -> Values:
    """What is called a fused bias here is a convolution's bias there."""
    keys = {name: name.replace(FUSED_BIAS, ".bias") for name in layouts}
    values = weights.take({keys[name]: layout.torch for name, layout in layouts.items()})
    return {name: values[key] for name, key in keys.items()}


def _resnet50(weights: Weights, layouts: Layouts) -> Values:
    """y = gamma (W x - mean) / sqrt(variance + eps) + beta, as a convolution with a bias."""
    norms = [name.removesuffix(FUSED_BIAS) for name in layouts if name.endswith(FUSED_BIAS)]
    shapes = {name: v.torch for name, v in layouts.items() if not name.endswith(FUSED_BIAS)}
    for norm in norms:
        shapes |= {f"{norm}.{key}": layouts[norm + FUSED_BIAS].torch for key in MOMENTS}
    found = weights.take(shapes)
    values = {name: value for name, value in found.items() if name in layouts}
    for norm in norms:
        gamma, beta, mean, variance = (found[f"{norm}.{key}"].astype(np.float64) for key in MOMENTS)
        if variance.min() < 0:
            raise CheckpointError(f"{weights.file.path}: '{norm}.running_var' is negative")
        scale = gamma / np.sqrt(variance + BATCH_NORM_EPS)
        conv = f"{_normed(norm)}.weight"
        values[conv] = (found[conv] * scale[:, None, None, None]).astype(np.float32)
        values[norm + FUSED_BIAS] = (beta - mean * scale).astype(np.float32)
    return values


def _normed(norm: str) -> str:
    """The convolution before a batch norm."""
    if norm.endswith("downsample.1"):
        return norm.replace("downsample.1", "downsample.0")
    return norm.replace("bn", "conv")


READERS: dict[str, Callable[[Weights, Layouts], Values]] = {
    "smollm2": _by_name,
    "smolvla": _by_name,
    "resnet50": _resnet50,
    "whisper": _whisper,
}
