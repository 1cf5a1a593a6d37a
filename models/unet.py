"""A conditioned U-Net in the style of Stable Diffusion: one residual block per level each way.

Below the finest level and in the middle, attention over pixels and over a text follows. Images
are NCHW at the graph's boundary and NHWC within.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.graph import Node
from models.images import conv2d, group_norm, to_nchw, to_nhwc
from models.layers import merge_heads, split_heads
from models.nn import Scope, layer_norm, linear
from models.waves import cosine, sine
from models.workload import Workload


@dataclass(frozen=True)
class UnetConfig:
    """Sizes; the defaults are the published ones. `side`, in pixels, halves at each level."""

    side: int = 32
    latent_channels: int = 4
    channels: int = 64
    multipliers: tuple[int, ...] = (1, 2, 4)
    groups: int = 16
    head: int = 32
    time_embedding: int = 64
    time: int = 256
    text_tokens: int = 77
    text: int = 768

    def __post_init__(self) -> None:
        halvings = len(self.multipliers) - 1
        if self.side < 1 or self.side % 2**halvings:
            raise ValueError(f"the side must be a multiple of {2**halvings}, got {self.side}")

    @property
    def widths(self) -> list[int]:
        """Channels per level, finest first."""
        return [self.channels * multiplier for multiplier in self.multipliers]

    @property
    def latent(self) -> tuple[int, int, int, int]:
        """Shape of the latent and of what the network predicts, NCHW."""
        return (1, self.latent_channels, self.side, self.side)


@dataclass(frozen=True)
class _Conditions:
    """What a block sees beside its image."""

    config: UnetConfig
    time: Node
    """The embedded time step [1, time]."""
    text: Node
    """[text_tokens, text]"""


def denoise(s: Scope, config: UnetConfig) -> Node:
    """Inputs "latent" [1, c, side, side], "timestep_embedding" [1, time_embedding] and
    "text_context" [text_tokens, text] -> prediction [1, c, side, side].
    """
    time = s.graph.input("timestep_embedding", (1, config.time_embedding))
    time = ops.silu(linear(s / "time_mlp.fc1", time, config.time))
    time = linear(s / "time_mlp.fc2", time, config.time)
    text = s.graph.input("text_context", (config.text_tokens, config.text))
    given, last = _Conditions(config, time, text), len(config.widths) - 1

    x = to_nhwc(s.graph.input("latent", config.latent))
    x = conv2d(s / "conv_in", x, config.channels, 3, padding=1)
    skips = []
    for level, width in enumerate(config.widths):
        part = s / f"encoder.{level}"
        x = _level(part, x, width, given, attends=level > 0)
        skips.append(x)
        if level < last:
            x = conv2d(part / "downsample", x, width, 3, stride=2, padding=1)
    x = _level(s / "middle", x, config.widths[last], given, attends=True)
    for level, width in reversed(list(enumerate(config.widths))):
        if level < last:
            x = ops.upsample_nearest(x, 2)
        x = ops.concat(x, skips[level], 3)
        x = _level(s / f"decoder.{level}", x, width, given, attends=level > 0)
    x = group_norm(s / "conv_out.norm", x, config.groups, silu=True)
    return to_nchw(conv2d(s / "conv_out", x, config.latent_channels, 3, padding=1))


def _level(s: Scope, x: Node, width: int, given: _Conditions, *, attends: bool) -> Node:
    x = _residual(s / "resblock", x, width, given)
    return _spatial_transformer(s / "attn", x, given) if attends else x


def _residual(s: Scope, x: Node, width: int, given: _Conditions) -> Node:
    groups = given.config.groups
    y = group_norm(s / "norm1", x, groups, silu=True)
    y = conv2d(s / "conv1", y, width, 3, padding=1)
    shift = linear(s / "time_proj", given.time, width)
    y = ops.add(y, ops.reshape(shift, (width,)))
    y = group_norm(s / "norm2", y, groups, silu=True)
    y = conv2d(s / "conv2", y, width, 3, padding=1)
    if x.shape[-1] != width:
        x = conv2d(s / "res_conv", x, width, 1)
    return ops.add(y, x)


def _spatial_transformer(s: Scope, image: Node, given: _Conditions) -> Node:
    channels, head = image.shape[-1], given.config.head
    x = conv2d(s / "proj_in", group_norm(s / "norm", image, given.config.groups), channels, 1)
    x = ops.reshape(x, (-1, channels))
    t = s / "transformer"
    normed = layer_norm(t / "norm1", x)
    x = ops.add(x, _attention(t / "self_attn", normed, normed, head))
    x = ops.add(x, _attention(t / "cross_attn", layer_norm(t / "norm2", x), given.text, head))
    hidden = ops.gelu_tanh(linear(t / "ff.fc1", layer_norm(t / "norm3", x), 4 * channels))
    x = ops.add(x, linear(t / "ff.fc2", hidden, channels))
    return ops.add(conv2d(s / "proj_out", ops.reshape(x, image.shape), channels, 1), image)


def _attention(s: Scope, x: Node, source: Node, head: int) -> Node:
    """Queries from x [tokens, channels], keys and values from source [tokens, any]."""
    width = x.shape[-1]
    heads = width // head
    q = split_heads(linear(s / "q_proj", x, width, bias=False), heads)
    k = split_heads(linear(s / "k_proj", source, width, bias=False), heads)
    v = split_heads(linear(s / "v_proj", source, width, bias=False), heads)
    return linear(s / "out_proj", merge_heads(ops.attention(q, k, v)), width, bias=False)


def _loss(prediction: Node, config: UnetConfig) -> Node:
    return ops.mse(prediction, prediction.graph.input("target", config.latent))


def _inputs(config: UnetConfig) -> dict[str, np.ndarray]:
    return {
        "latent": sine(0.01, config.latent),
        "timestep_embedding": sine(0.005, (1, config.time_embedding)),
        "text_context": np.float32(0.1) * cosine(0.003, (config.text_tokens, config.text)),
        "target": cosine(0.007, config.latent),
    }


UNET = Workload(
    name="StableDiffusion",
    full=UnetConfig(),
    latency=UnetConfig(),
    reduced=UnetConfig(
        side=8,
        channels=8,
        groups=4,
        head=4,
        time_embedding=6,
        time=10,
        text_tokens=5,
        text=12,
    ),
    sized=lambda side: UnetConfig(side=side),
    forward=denoise,
    loss=_loss,
    inputs=_inputs,
)
