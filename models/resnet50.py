"""ResNet-50 (v1.5: the 3x3 convolution has the stride) with its batch norms folded away.

Each norm leaves a bias per channel. Images are NCHW at the graph's boundary and NHWC within.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.graph import Node
from models.images import conv2d, to_nhwc
from models.nn import Scope, constant, linear
from models.waves import sine
from models.workload import Workload

EXPANSION = 4
"""Channels that a block puts out per channel of its 3x3 convolution."""


@dataclass(frozen=True)
class ResnetConfig:
    """Sizes; the defaults are the published ones. `side` is in pixels."""

    batch: int = 4
    side: int = 224
    channels: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000

    @property
    def images(self) -> tuple[int, int, int, int]:
        """Shape of the input, NCHW."""
        return (self.batch, 3, self.side, self.side)


def classify(s: Scope, config: ResnetConfig) -> Node:
    """Input "images" [batch, 3, side, side] -> logits [batch, classes]."""
    x = to_nhwc(s.graph.input("images", config.images))
    x = conv2d(s / "conv1", x, config.channels, 7, stride=2, padding=3)
    x = ops.max_pool2d(ops.relu(_bias(s / "bn1", x)), 3, stride=2, padding=1)
    for stage, blocks in enumerate(config.blocks):
        width = config.channels << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _bottleneck(s / f"layer{stage + 1}.{block}", x, width, stride)
    return linear(s / "fc", ops.global_avg_pool(x), config.classes)


def _bottleneck(s: Scope, x: Node, width: int, stride: int) -> Node:
    y = ops.relu(_bias(s / "bn1", conv2d(s / "conv1", x, width, 1)))
    y = conv2d(s / "conv2", y, width, 3, stride=stride, padding=1)
    y = ops.relu(_bias(s / "bn2", y))
    y = _bias(s / "bn3", conv2d(s / "conv3", y, EXPANSION * width, 1))
    if x.shape != y.shape:
        x = conv2d(s / "downsample.0", x, EXPANSION * width, 1, stride=stride)
        x = _bias(s / "downsample.1", x)
    return ops.relu(ops.add(y, x))


def _bias(s: Scope, x: Node) -> Node:
    """What is left of a batch norm."""
    return ops.add(x, s.parameter("fused_bias", x.shape[-1:], constant(0.0)))


def _loss(logits: Node, config: ResnetConfig) -> Node:
    return ops.cross_entropy(logits, logits.graph.input("labels", (config.batch,), "u32"))


def _inputs(config: ResnetConfig) -> dict[str, np.ndarray]:
    return {
        "images": sine(0.001, config.images),
        "labels": np.arange(config.batch, dtype=np.uint32) % config.classes,
    }


def _fixed(name: str) -> float | None:
    return 0.0 if name.endswith(".fused_bias") else None


RESNET50 = Workload(
    name="ResNet-50",
    full=ResnetConfig(),
    latency=ResnetConfig(batch=1),
    reduced=ResnetConfig(batch=2, side=33, channels=4, blocks=(1, 2, 1, 1), classes=7),
    sized=lambda side: ResnetConfig(side=side),
    forward=classify,
    loss=_loss,
    inputs=_inputs,
    fixed=_fixed,
)
