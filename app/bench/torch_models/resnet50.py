"""ResNet-50 with folded batch norms in PyTorch."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from app.bench.torch_models.torch_model import Inputs, Part, TorchModel, affine, cross_entropy
from models.resnet50 import ResnetConfig


def resnet50(p: Part, x: Inputs, config: ResnetConfig) -> Tensor:
    """Input "images" [batch, 3, side, side] -> logits [batch, classes]."""
    y = F.relu(_conv(p, "conv1", "bn1", x["images"], stride=2, padding=3))
    y = F.max_pool2d(y, 3, 2, 1)
    for stage, blocks in enumerate(config.blocks):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = _bottleneck(p / f"layer{stage + 1}.{block}", y, stride)
    return affine(p / "fc", y.mean(dim=(2, 3)))


def _bottleneck(p: Part, x: Tensor, stride: int) -> Tensor:
    y = F.relu(_conv(p, "conv1", "bn1", x))
    y = F.relu(_conv(p, "conv2", "bn2", y, stride=stride, padding=1))
    y = _conv(p, "conv3", "bn3", y)
    if "downsample.0.weight" in p:
        x = _conv(p, "downsample.0", "downsample.1", x, stride=stride)
    return F.relu(y + x)


def _conv(p: Part, conv: str, bias: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, p[f"{conv}.weight"], p[f"{bias}.fused_bias"], stride, padding)


RESNET50 = TorchModel(resnet50, cross_entropy)
