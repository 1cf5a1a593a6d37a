"""The conditioned U-Net in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from app.bench.torch_models.torch_model import (
    Inputs,
    Part,
    TorchModel,
    affine,
    attention,
    layer_norm,
)
from models.unet import UnetConfig


@dataclass(frozen=True)
class _Conditions:
    config: UnetConfig
    time: Tensor
    text: Tensor


def unet(p: Part, x: Inputs, config: UnetConfig) -> Tensor:
    """Inputs "latent", "timestep_embedding" and "text_context" -> prediction, like the latent."""
    time = F.silu(affine(p / "time_mlp.fc1", x["timestep_embedding"]))
    given = _Conditions(config, affine(p / "time_mlp.fc2", time), x["text_context"])
    levels = range(len(config.widths))
    y = F.conv2d(x["latent"], p["conv_in.weight"], padding=1)
    skips = []
    for level in levels:
        part = p / f"encoder.{level}"
        y = _level(part, y, given, attends=level > 0)
        skips.append(y)
        if level < levels[-1]:
            y = F.conv2d(y, part["downsample.weight"], stride=2, padding=1)
    y = _level(p / "middle", y, given, attends=True)
    for level in reversed(levels):
        if level < levels[-1]:
            y = F.interpolate(y, scale_factor=2, mode="nearest")
        y = torch.cat([y, skips[level]], dim=1)
        y = _level(p / f"decoder.{level}", y, given, attends=level > 0)
    y = F.silu(_group_norm(p / "conv_out.norm", y, config))
    return F.conv2d(y, p["conv_out.weight"], padding=1)


def _level(p: Part, y: Tensor, given: _Conditions, *, attends: bool) -> Tensor:
    y = _residual(p / "resblock", y, given)
    return _spatial_transformer(p / "attn", y, given) if attends else y


def _residual(p: Part, x: Tensor, given: _Conditions) -> Tensor:
    y = F.silu(_group_norm(p / "norm1", x, given.config))
    y = F.conv2d(y, p["conv1.weight"], padding=1)
    y = y + affine(p / "time_proj", given.time)[:, :, None, None]
    y = F.silu(_group_norm(p / "norm2", y, given.config))
    y = F.conv2d(y, p["conv2.weight"], padding=1)
    return y + (F.conv2d(x, p["res_conv.weight"]) if "res_conv.weight" in p else x)


def _spatial_transformer(p: Part, image: Tensor, given: _Conditions) -> Tensor:
    y = F.conv2d(_group_norm(p / "norm", image, given.config), p["proj_in.weight"])
    y, t = y[0].flatten(1).T, p / "transformer"
    normed = layer_norm(t / "norm1", y)
    y = y + _attention(t / "self_attn", normed, normed, given.config.head)
    y = y + _attention(t / "cross_attn", layer_norm(t / "norm2", y), given.text, given.config.head)
    hidden = F.gelu(affine(t / "ff.fc1", layer_norm(t / "norm3", y)), approximate="tanh")
    y = y + affine(t / "ff.fc2", hidden)
    return image + F.conv2d(y.T.reshape(image.shape), p["proj_out.weight"])


def _attention(p: Part, x: Tensor, source: Tensor, width: int) -> Tensor:
    q, k, v = affine(p / "q_proj", x), affine(p / "k_proj", source), affine(p / "v_proj", source)
    return affine(p / "out_proj", attention(q, k, v, width))


def _group_norm(p: Part, x: Tensor, config: UnetConfig) -> Tensor:
    return F.group_norm(x, config.groups, p["weight"], p["bias"], 1e-5)


UNET = TorchModel(unet, lambda y, x: F.mse_loss(y, x["target"]))
