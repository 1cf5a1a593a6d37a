"""The action expert of SmolVLA (Shukor et al. 2025): it denoises a robot's next actions.

Even layers attend causally to the actions, odd ones to what a vision-language model has seen;
grouped-query attention, gated MLPs, no positions, no final norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.graph import Node
from models.layers import merge_heads, rms_norm, split_heads, swiglu_mlp
from models.nn import Scope, linear
from models.waves import cosine, sine
from models.workload import Workload


@dataclass(frozen=True)
class SmolVlaConfig:
    """Sizes; the defaults are the published ones. `action` is the extent of one action."""

    actions: int = 50
    action: int = 32
    hidden: int = 720
    layers: int = 16
    heads: int = 15
    kv_heads: int = 5
    head: int = 64
    mlp: int = 2048
    context_tokens: int = 16
    context: int = 320


def denoise(s: Scope, config: SmolVlaConfig) -> Node:
    """Inputs "noisy_actions" [actions, action], "timestep" [1, 2 * hidden] and "vlm_kv"
    [context_tokens, context] -> [1, actions, action].
    """
    s = s / "model"
    noisy = s.graph.input("noisy_actions", (config.actions, config.action))
    context = s.graph.input("vlm_kv", (config.context_tokens, config.context))
    x = ops.add(linear(s / "action_in_proj", noisy, config.hidden), _time(s, config))
    for layer in range(config.layers):
        block = s / f"vlm_with_expert.lm_expert.layers.{layer}"
        x = _block(block, x, None if layer % 2 == 0 else context, config)
    y = linear(s / "action_out_proj", x, config.action)
    return ops.reshape(y, (1, config.actions, config.action))


def _time(s: Scope, config: SmolVlaConfig) -> Node:
    """The embedded time step [1, hidden]."""
    x = s.graph.input("timestep", (1, 2 * config.hidden))
    x = ops.silu(linear(s / "action_time_mlp_in", x, config.hidden))
    return linear(s / "action_time_mlp_out", x, config.hidden)


def _block(s: Scope, x: Node, context: Node | None, config: SmolVlaConfig) -> Node:
    h = rms_norm(s / "input_layernorm", x)
    x = ops.add(x, _attention(s / "self_attn", h, context, config))
    h = rms_norm(s / "post_attention_layernorm", x)
    return ops.add(x, swiglu_mlp(s / "mlp", h, config.mlp))


def _attention(s: Scope, x: Node, context: Node | None, config: SmolVlaConfig) -> Node:
    """Keys and values from the context; without one from x, causally."""
    source = x if context is None else context

    def heads(name: str, y: Node, count: int) -> Node:
        return split_heads(linear(s / name, y, count * config.head, bias=False), count)

    q = heads("q_proj", x, config.heads)
    k, v = (heads(name, source, config.kv_heads) for name in ("k_proj", "v_proj"))
    mixed = ops.attention(q, k, v, causal=context is None)
    return linear(s / "o_proj", merge_heads(mixed), config.hidden, bias=False)


def _loss(actions: Node, config: SmolVlaConfig) -> Node:
    return ops.mean_square(actions)


def _inputs(config: SmolVlaConfig) -> dict[str, np.ndarray]:
    return {
        "noisy_actions": sine(0.01, (config.actions, config.action)),
        "timestep": sine(0.005, (1, 2 * config.hidden)),
        "vlm_kv": cosine(0.01, (config.context_tokens, config.context)),
    }


SMOLVLA = Workload(
    name="SmolVLA",
    full=SmolVlaConfig(),
    latency=SmolVlaConfig(actions=1),
    reduced=SmolVlaConfig(
        actions=7,
        action=5,
        hidden=24,
        layers=4,
        heads=6,
        kv_heads=2,
        head=4,
        mlp=20,
        context_tokens=3,
        context=11,
    ),
    sized=lambda actions: SmolVlaConfig(actions=actions),
    forward=denoise,
    loss=_loss,
    inputs=_inputs,
)
