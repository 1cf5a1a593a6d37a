"""SmolLM2 in PyTorch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from app.bench.torch_models.torch_model import (
    Inputs,
    Part,
    TorchModel,
    affine,
    attention,
    cross_entropy,
    gated_mlp,
    rms_norm,
)
from models.smollm2 import SmolLm2Config


def smollm2(p: Part, x: Inputs, config: SmolLm2Config) -> Tensor:
    """Input "ids" int64 [tokens] -> logits [1, tokens, vocabulary]."""
    p = p / "model"
    # The table is used twice. As a view, its two gradients add up inside the graph, wherever the
    # parameter itself was made.
    table = p["embed_tokens.weight"].view_as(p["embed_tokens.weight"])
    y = F.embedding(x["ids"], table)
    rotation = x["cos"], x["sin"]
    for layer in range(config.layers):
        block = p / f"layers.{layer}"
        y = y + _attention(block / "self_attn", rms_norm(block / "input_layernorm", y), rotation)
        y = y + gated_mlp(block / "mlp", rms_norm(block / "post_attention_layernorm", y))
    return (rms_norm(p / "norm", y) @ table.T)[None]


def _rotation(config: SmolLm2Config) -> dict[str, np.ndarray]:
    """Cosines and sines f32 [tokens, 1, head] of position * theta^(-2 i / head)."""
    frequencies = config.theta ** (-np.arange(0, config.head, 2) / config.head)
    angles = np.tile(np.arange(config.tokens)[:, None] * frequencies, 2)[:, None]
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def _attention(p: Part, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    width = rotation[0].shape[-1]
    q, k = (_turned(affine(p / name, x), *rotation) for name in ("q_proj", "k_proj"))
    return affine(p / "o_proj", attention(q, k, affine(p / "v_proj", x), width, causal=True))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Element i of a head and element i + width / 2 are a complex number, turned by its angle."""
    heads = x.unflatten(1, (-1, cos.shape[-1]))
    low, high = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat([-high, low], dim=-1) * sin).flatten(1)


SMOLLM2 = TorchModel(smollm2, cross_entropy, _rotation)
