"""The encoder of Whisper-tiny in PyTorch."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from app.bench.torch_models.torch_model import (
    Inputs,
    Part,
    TorchModel,
    affine,
    attention,
    layer_norm,
    mean_square,
)
from models.whisper import WhisperConfig


def whisper(p: Part, x: Inputs, config: WhisperConfig) -> Tensor:
    """Input "mel" [1, mels, frames] -> features [1, frames / 2, hidden]."""
    p = p / "model.encoder"
    y = x["mel"]
    for name, stride in (("conv1", 1), ("conv2", 2)):
        conv = p / name
        y = F.gelu(F.conv1d(y, conv["weight"], conv["fused_bias"], stride, padding=1))
    y = y[0].T + p["embed_positions.weight"]
    for layer in range(config.layers):
        block = p / f"layers.{layer}"
        h = layer_norm(block / "self_attn_layer_norm", y)
        at = block / "self_attn"
        q, k, v = (affine(at / f"{name}_proj", h) for name in "qkv")
        y = y + affine(at / "out_proj", attention(q, k, v, config.hidden // config.heads))
        h = F.gelu(affine(block / "fc1", layer_norm(block / "final_layer_norm", y)))
        y = y + affine(block / "fc2", h)
    return layer_norm(p / "layer_norm", y)[None]


WHISPER = TorchModel(whisper, mean_square)
