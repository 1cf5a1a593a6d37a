"""The encoder of Whisper-tiny (Radford et al. 2022): features of sound from its mel spectrogram.

Two convolutions over time, the second of stride 2, frozen positions, pre-norm blocks of full
attention. Keys have no bias; GELU is the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from engine import ops
from engine.graph import Node
from models import layouts
from models.layers import merge_heads, split_heads
from models.nn import Scope, constant, layer_norm, linear, normal
from models.waves import sine
from models.workload import Workload

TAPS = 3
"""Frames that a convolution sees."""


@dataclass(frozen=True)
class WhisperConfig:
    """Sizes; the defaults are the published ones. `frames` must be even."""

    mels: int = 80
    frames: int = 3000
    hidden: int = 384
    layers: int = 4
    heads: int = 6
    mlp: int = 1536


def encode(s: Scope, config: WhisperConfig) -> Node:
    """Input "mel" [1, mels, frames] -> features [1, frames / 2, hidden]."""
    s = s / "model.encoder"
    x = ops.permute(s.graph.input("mel", (1, config.mels, config.frames)), (0, 2, 1))
    x = ops.gelu(_conv(s / "conv1", x, config.hidden, stride=1))
    x = ops.gelu(_conv(s / "conv2", x, config.hidden, stride=2))
    shape = (config.frames // 2, config.hidden)
    frozen = replace(s, trainable=False)
    positions = (frozen / "embed_positions").parameter("weight", shape, normal(0.02))
    x = ops.add(ops.reshape(x, shape), positions)
    for layer in range(config.layers):
        x = _block(s / f"layers.{layer}", x, config)
    return ops.reshape(layer_norm(s / "layer_norm", x), (1, *shape))


def _conv(s: Scope, x: Node, width: int, *, stride: int) -> Node:
    """Convolution of x [1, frames, channels] over time."""
    layout = layouts.conv(width, x.shape[-1], TAPS)
    init = normal(sqrt(1.0 / layout.engine[1]))
    weight = s.parameter("weight", layout.engine, init, layout)
    bias = s.parameter("fused_bias", (width,), constant(0.0))
    return ops.conv1d(x, weight, bias, TAPS, stride=stride, padding=TAPS // 2)


def _block(s: Scope, x: Node, config: WhisperConfig) -> Node:
    h = layer_norm(s / "self_attn_layer_norm", x)
    x = ops.add(x, _attention(s / "self_attn", h, config.heads))
    h = layer_norm(s / "final_layer_norm", x)
    h = ops.gelu(linear(s / "fc1", h, config.mlp))
    return ops.add(x, linear(s / "fc2", h, config.hidden))


def _attention(s: Scope, x: Node, heads: int) -> Node:
    width = x.shape[-1]
    q = linear(s / "q_proj", x, width)
    k = linear(s / "k_proj", x, width, bias=False)
    v = linear(s / "v_proj", x, width)
    mixed = ops.attention(*(split_heads(y, heads) for y in (q, k, v)))
    return linear(s / "out_proj", merge_heads(mixed), width)


def _loss(features: Node, config: WhisperConfig) -> Node:
    return ops.mean_square(features)


def _inputs(config: WhisperConfig) -> dict[str, np.ndarray]:
    return {"mel": sine(0.001, (1, config.mels, config.frames))}


WHISPER = Workload(
    name="Whisper-tiny",
    full=WhisperConfig(),
    latency=WhisperConfig(),
    reduced=WhisperConfig(mels=5, frames=22, hidden=24, layers=2, heads=3, mlp=28),
    sized=lambda frames: WhisperConfig(frames=frames),
    forward=encode,
    loss=_loss,
    inputs=_inputs,
)
