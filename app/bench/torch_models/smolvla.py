"""SmolVLA's action expert in PyTorch."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from app.bench.torch_models.torch_model import (
    Inputs,
    Part,
    TorchModel,
    affine,
    attention,
    gated_mlp,
    mean_square,
    rms_norm,
)
from models.smolvla import SmolVlaConfig


def smolvla(p: Part, x: Inputs, config: SmolVlaConfig) -> Tensor:
    """Inputs "noisy_actions", "timestep" and "vlm_kv" -> [1, actions, action]."""
    p = p / "model"
    time = affine(p / "action_time_mlp_in", x["timestep"])
    time = affine(p / "action_time_mlp_out", F.silu(time))
    y = affine(p / "action_in_proj", x["noisy_actions"]) + time
    for layer in range(config.layers):
        block = p / f"vlm_with_expert.lm_expert.layers.{layer}"
        h = rms_norm(block / "input_layernorm", y)
        crossed = layer % 2 == 1
        y = y + _attention(block / "self_attn", h, x["vlm_kv"] if crossed else h, config, crossed)
        y = y + gated_mlp(block / "mlp", rms_norm(block / "post_attention_layernorm", y))
    return affine(p / "action_out_proj", y)[None]


def _attention(p: Part, h: Tensor, source: Tensor, config: SmolVlaConfig, crossed: bool) -> Tensor:
    q = affine(p / "q_proj", h)
    k, v = affine(p / "k_proj", source), affine(p / "v_proj", source)
    return affine(p / "o_proj", attention(q, k, v, config.head, causal=not crossed))


SMOLVLA = TorchModel(smolvla, mean_square)
