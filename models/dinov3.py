"""DINOv3 ViT-S/16 encoder (Siméoni et al. 2025), first n of its 12 blocks.

Tokens are [CLS, 4 registers, 14 x 14 patches]; axial RoPE turns the patches' queries and keys
only; pre-norm blocks with layer scale; exact GELU. Parameter names are those of the published
Hugging Face checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import pi

import numpy as np

from engine import ops
from engine.graph import Node
from models.nn import Scope, constant, layer_norm, linear, normal

WIDTH = 384
HEADS = 6
HEAD = WIDTH // HEADS
HIDDEN = 1536
PATCH = 16
REGISTERS = 4
PREFIX = 1 + REGISTERS
PERIODS = 100.0 ** (np.arange(HEAD // 4) / (HEAD // 4))
"""Of the rotation, in units of half the image."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
DEFAULT_DEPTH = 3
MAX_DEPTH = 12


Rotation = tuple[Node, Node]
"""Angles as cos and sin [tokens, HEAD / 2]."""


def encode(
    image: Node,
    depth: int = DEFAULT_DEPTH,
    *,
    trainable: bool = False,
    scope: Scope | None = None,
    masked: Node | None = None,
) -> Node:
    """RGB image [h, w, 3] in 0..1 -> tokens [5 + h/16 * w/16, 384] after block `depth`.

    A batch of images [n, h, w, 3] gives tokens [n, 5 + h/16 * w/16, 384]. The result is the raw
    residual stream, as Hugging Face's hidden_states[depth]. Parameters are declared in `scope`, by
    default the graph's own. Where `masked` [..., h/16 * w/16, 1] is 1, not 0, a learned token
    stands for the patch.
    """
    if not 1 <= depth <= MAX_DEPTH:
        raise ValueError(f"encoder depth must be 1 to {MAX_DEPTH}, got {depth}")
    height, width, channels = image.shape[-3:]
    if channels != 3 or len(image.shape) > 4:
        raise ValueError(f"images must be RGB [..., height, width, 3], got {list(image.shape)}")
    if height % PATCH or width % PATCH:
        raise ValueError(f"image sides must be multiples of {PATCH}, got {width}x{height}")
    scope = scope or Scope(image.graph, "", trainable)
    x = _embed(scope, image, masked)
    rotation = _rotation(scope, height // PATCH, width // PATCH)
    for layer in range(depth):
        x = _block(scope / f"layer.{layer}", x, rotation)
    return x


def patch_tokens(tokens: Node) -> Node:
    """Drop the CLS and register tokens."""
    *batch, count, _ = tokens.shape
    return ops.take(tokens, len(batch), PREFIX, count)


def lengthened(tensors: Mapping[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    """The parameters of an encoder whose tokens are `factor` times as long, and else the same.

    All that a block reads of the residual stream is normalised: only what is added to the stream
    grows. Tokens point where they did, but for the norms' epsilon.
    """
    added = ("embeddings.", ".lambda1")
    return {
        name: value * np.float32(factor) if any(part in name for part in added) else value
        for name, value in tensors.items()
    }


def centred(tensors: Mapping[str, np.ndarray], mean: np.ndarray) -> dict[str, np.ndarray]:
    """The parameters of an encoder whose tokens are less by `mean` [384], and else the same.

    The bias that the last block adds takes it in; nothing in the encoder reads what comes after.
    """
    last = max(int(found[1]) for name in tensors if (found := re.match(r"layer\.(\d+)\.", name)))
    bias, scale = (
        f"layer.{last}.{what}" for what in ("mlp.down_proj.bias", "layer_scale2.lambda1")
    )
    return {**tensors, bias: tensors[bias] - (mean / tensors[scale]).astype(np.float32)}


def _embed(scope: Scope, image: Node, masked: Node | None) -> Node:
    mean = scope.constant("image.mean", np.array(MEAN, np.float32))
    std = scope.constant("image.std", np.array(STD, np.float32))
    normalized = ops.div(ops.sub(image, mean), std)
    *batch, height, width, channels = image.shape
    images = ops.reshape(normalized, (-1, height, width, channels))
    patches = ops.unfold(images, PATCH, stride=PATCH)
    s = scope / "embeddings"
    x = linear(s / "patch_embeddings", patches, WIDTH, std=0.02)
    x = ops.reshape(x, (*batch, -1, WIDTH))
    if masked is not None:
        token = s.parameter("mask_token", (1, WIDTH), normal(0.02))
        x = ops.add(x, ops.mul(masked, ops.sub(token, x)))
    cls = s.parameter("cls_token", (1, WIDTH), normal(0.02))
    registers = s.parameter("register_tokens", (REGISTERS, WIDTH), normal(0.02))
    prefix = ops.concat(cls, registers, 0)
    if batch:
        prefix = ops.expand(ops.reshape(prefix, (1, PREFIX, WIDTH)), (*batch, PREFIX, WIDTH))
    return ops.concat(prefix, x, len(batch))


def _rotation(scope: Scope, rows: int, columns: int) -> Rotation:
    """Angles 2 pi * coordinate / period at patch centres, y then x; zero for prefix tokens."""
    y = 2 * (np.arange(rows) + 0.5) / rows - 1
    x = 2 * (np.arange(columns) + 0.5) / columns - 1
    grid = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (2 * pi * grid / PERIODS).reshape(rows * columns, HEAD // 2)
    angles = np.concatenate([np.zeros((PREFIX, HEAD // 2)), angles])
    return scope.constant("rope.cos", np.cos(angles)), scope.constant("rope.sin", np.sin(angles))


def _block(s: Scope, x: Node, rotation: Rotation) -> Node:
    attended = _attention(s / "attention", layer_norm(s / "norm1", x), rotation)
    gamma = (s / "layer_scale1").parameter("lambda1", (WIDTH,), constant(1.0))
    x = ops.add(x, ops.mul(attended, gamma))
    hidden = ops.gelu(linear(s / "mlp.up_proj", layer_norm(s / "norm2", x), HIDDEN, std=0.02))
    gamma = (s / "layer_scale2").parameter("lambda1", (WIDTH,), constant(1.0))
    return ops.add(x, ops.mul(linear(s / "mlp.down_proj", hidden, WIDTH, std=0.02), gamma))


def _attention(s: Scope, x: Node, rotation: Rotation) -> Node:
    *batch, tokens, _ = x.shape
    lead = len(batch)
    swapped = (*range(lead), lead + 1, lead, lead + 2)

    def heads(name: str, *, bias: bool) -> Node:
        projected = linear(s / name, x, WIDTH, bias=bias, std=0.02)
        split = ops.permute(ops.reshape(projected, (*batch, tokens, HEADS, HEAD)), swapped)
        return ops.reshape(split, (-1, tokens, HEAD))

    query = ops.rope(heads("q_proj", bias=True), *rotation)
    key = ops.rope(heads("k_proj", bias=False), *rotation)
    mixed = ops.attention(query, key, heads("v_proj", bias=True))
    mixed = ops.permute(ops.reshape(mixed, (*batch, HEADS, tokens, HEAD)), swapped)
    return linear(s / "o_proj", ops.reshape(mixed, (*batch, tokens, WIDTH)), WIDTH, std=0.02)
