"""DinoVision's encoder and decoder in PyTorch."""

from __future__ import annotations

from math import pi

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from app.bench.torch_models.torch_model import Inputs, Part, TorchModel, affine, layer_norm
from models.decoder import HEAD as HEAD_PIXELS
from models.decoder import STAGES
from models.dinov3 import HEAD, MEAN, PATCH, PERIODS, PREFIX, STD
from models.vision import VisionConfig


def dinovision(p: Part, x: Inputs, config: VisionConfig) -> Tensor:
    """Input "image" [size, size, 3] in 0..1 -> the same painted from its tokens."""
    tokens = _encode(p, x, config)[PREFIX:]
    side = config.size // PATCH
    return _decode(p / "decoder", tokens.unflatten(0, (1, side, side)))[0]


def _encode(p: Part, x: Inputs, config: VisionConfig) -> Tensor:
    """Tokens [5 + patches, 384] after the last block."""
    image = (x["image"] - x["image.mean"]) / x["image.std"]
    side = config.size // PATCH
    patches = image.reshape(side, PATCH, side, PATCH, 3).transpose(1, 2).reshape(side**2, -1)
    s = p / "embeddings"
    embedded = affine(s / "patch_embeddings", patches)
    y = torch.cat([s["cls_token"], s["register_tokens"], embedded])
    for layer in range(config.depth):
        block = p / f"layer.{layer}"
        mixed = _attention(block / "attention", layer_norm(block / "norm1", y), x)
        y = y + mixed * block["layer_scale1.lambda1"]
        hidden = F.gelu(affine(block / "mlp.up_proj", layer_norm(block / "norm2", y)))
        y = y + affine(block / "mlp.down_proj", hidden) * block["layer_scale2.lambda1"]
    return y


def _attention(p: Part, y: Tensor, x: Inputs) -> Tensor:
    q, k, v = (
        affine(p / f"{name}_proj", y).unflatten(1, (-1, HEAD)).transpose(0, 1)[None]
        for name in "qkv"
    )
    q, k = (_rotated(t, x["rope.cos"], x["rope.sin"]) for t in (q, k))
    mixed = F.scaled_dot_product_attention(q, k, v)
    return affine(p / "o_proj", mixed[0].transpose(0, 1).flatten(1))


def _rotated(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = t.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _decode(p: Part, tokens: Tensor) -> Tensor:
    """Tokens [1, rows, columns, 384] -> images [1, 16 * rows, 16 * columns, 3] in 0..1."""
    y = tokens
    for number, (_, factor) in enumerate(STAGES):
        stage = p / f"stage.{number}"
        y = _shuffled(affine(stage / "enter", y), factor)
        block = stage / "block"
        hidden = F.gelu(_conv(block / "conv1", layer_norm(block / "norm", y)))
        y = y + _conv(block / "conv2", hidden)
    y = F.gelu(layer_norm(p / "norm_out", y))
    detail = _shuffled(_conv(p / "head", y), HEAD_PIXELS)
    coarse = _shuffled(affine(p / "coarse", tokens), PATCH)
    return torch.sigmoid(detail + coarse)


def _conv(p: Part, y: Tensor) -> Tensor:
    """3x3, channels last in memory on both sides."""
    y = F.conv2d(y.permute(0, 3, 1, 2), p["weight"], p["bias"], padding=1)
    return y.permute(0, 2, 3, 1)


def _shuffled(y: Tensor, factor: int) -> Tensor:
    n, h, w, channels = y.shape
    tiles = y.reshape(n, h, w, factor, factor, channels // factor**2)
    return tiles.transpose(2, 3).reshape(n, h * factor, w * factor, -1)


def _constants(config: VisionConfig) -> dict[str, np.ndarray]:
    side = config.size // PATCH
    at = 2 * (np.arange(side) + 0.5) / side - 1
    grid = np.stack(np.meshgrid(at, at, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (2 * pi * grid / PERIODS).reshape(side**2, HEAD // 2)
    angles = np.concatenate([np.zeros((PREFIX, HEAD // 2)), angles])
    return {
        "image.mean": np.array(MEAN, np.float32),
        "image.std": np.array(STD, np.float32),
        "rope.cos": np.cos(angles).astype(np.float32),
        "rope.sin": np.sin(angles).astype(np.float32),
    }


DINOVISION = TorchModel(dinovision, lambda y, x: F.mse_loss(y, x["target"]), _constants)
