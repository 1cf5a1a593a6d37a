"""SmolLM2-135M (Ben Allal et al. 2025): a decoder of the LLaMA kind.

Pre-norm blocks of causal grouped-query attention with rotary positions and a gated MLP; no
biases; the token embedding is also the output layer. Names are those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.graph import Graph, Node
from models.layers import merge_heads, rms_norm, split_heads, swiglu_mlp
from models.nn import Scope, linear, normal
from models.workload import Workload

Rotation = tuple[Node, Node]
"""Angles as cos and sin [tokens, head / 2]."""
Mixing = Callable[[Scope, Node, Node, Node], Node]
"""What a layer's attention makes of queries [heads, tokens, head], and keys and values [kv_heads,
tokens, head], none of them rotated yet; its scope names the layer."""


@dataclass(frozen=True)
class SmolLm2Config:
    """Sizes; the defaults are the published ones. `head` is the width of one head.

    `tied`: the embedding is the output layer; else that is the parameter "lm_head.weight".
    """

    tokens: int = 128
    vocabulary: int = 49152
    hidden: int = 576
    layers: int = 30
    heads: int = 9
    kv_heads: int = 3
    head: int = 64
    mlp: int = 1536
    theta: float = 1e5
    eps: float = 1e-5
    tied: bool = True


def predict(s: Scope, config: SmolLm2Config) -> Node:
    """Input "ids" u32 [tokens] -> logits of the next token [1, tokens, vocabulary]."""
    angles = rotation(s.graph, config, config.tokens)

    def mix(layer: Scope, q: Node, k: Node, v: Node) -> Node:
        return ops.attention(ops.rope(q, *angles), ops.rope(k, *angles), v, causal=True)

    logits = decode(s, config, mix)
    return ops.reshape(logits, (1, config.tokens, config.vocabulary))


def decode(
    s: Scope, config: SmolLm2Config, mix: Mixing, pick: Callable[[Node], Node] = lambda x: x
) -> Node:
    """Input "ids" u32 [tokens] -> logits [rows, vocabulary].

    `pick` chooses the rows of [tokens, hidden] whose logits are wanted.
    """
    head, s = s / "lm_head", s / "model"
    shape = (config.vocabulary, config.hidden)
    table = (s / "embed_tokens").parameter("weight", shape, normal(0.02))
    x = ops.embedding(s.graph.input("ids", (config.tokens,), "u32"), table)
    for layer in range(config.layers):
        x = _block(s / f"layers.{layer}", x, mix, config)
    x = rms_norm(s / "norm", pick(x), config.eps)
    if config.tied:
        return ops.linear(x, table)
    return linear(head, x, config.vocabulary, bias=False)


def rotation(graph: Graph, config: SmolLm2Config, tokens: int) -> Rotation:
    """Angles position * theta^(-2 i / head) of the first `tokens` positions."""
    frequencies = config.theta ** (-np.arange(0, config.head, 2) / config.head)
    angles = np.arange(tokens)[:, None] * frequencies
    return graph.constant("rope.cos", np.cos(angles)), graph.constant("rope.sin", np.sin(angles))


def _block(s: Scope, x: Node, mix: Mixing, config: SmolLm2Config) -> Node:
    h = rms_norm(s / "input_layernorm", x, config.eps)
    x = ops.add(x, _attention(s / "self_attn", h, mix, config))
    h = rms_norm(s / "post_attention_layernorm", x, config.eps)
    return ops.add(x, swiglu_mlp(s / "mlp", h, config.mlp))


def _attention(s: Scope, x: Node, mix: Mixing, config: SmolLm2Config) -> Node:
    def heads(name: str, count: int) -> Node:
        return split_heads(linear(s / name, x, count * config.head, bias=False), count)

    q = heads("q_proj", config.heads)
    k, v = (heads(name, config.kv_heads) for name in ("k_proj", "v_proj"))
    return linear(s / "o_proj", merge_heads(mix(s, q, k, v)), config.hidden, bias=False)


def _loss(logits: Node, config: SmolLm2Config) -> Node:
    """Mean cross-entropy with input "labels" u32 [tokens]."""
    labels = logits.graph.input("labels", (config.tokens,), "u32")
    return ops.cross_entropy(ops.reshape(logits, (config.tokens, config.vocabulary)), labels)


def _inputs(config: SmolLm2Config) -> dict[str, np.ndarray]:
    ids = np.arange(config.tokens, dtype=np.uint32)
    return {"ids": ids % config.vocabulary, "labels": (ids + 1) % config.vocabulary}


SMOLLM2 = Workload(
    name="SmolLM2-135M",
    full=SmolLm2Config(),
    latency=SmolLm2Config(tokens=1),
    reduced=SmolLm2Config(
        tokens=11, vocabulary=37, hidden=24, layers=2, heads=6, kv_heads=2, head=4, mlp=20
    ),
    sized=lambda tokens: SmolLm2Config(tokens=tokens),
    forward=predict,
    loss=_loss,
    inputs=_inputs,
)
