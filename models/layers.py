"""Layers of transformers."""

from __future__ import annotations

from engine import ops
from engine.graph import Node
from models.nn import Scope, constant, linear


def rms_norm(s: Scope, x: Node, eps: float = 1e-5) -> Node:
    """Root-mean-square normalisation over the last axis with a learned weight."""
    return ops.rms_norm(x, s.parameter("weight", x.shape[-1:], constant(1.0)), eps=eps)


def split_heads(x: Node, heads: int) -> Node:
    """[tokens, heads * width] -> [heads, tokens, width]."""
    tokens, features = x.shape
    return ops.permute(ops.reshape(x, (tokens, heads, features // heads)), (1, 0, 2))


def merge_heads(x: Node) -> Node:
    """[heads, tokens, width] -> [tokens, heads * width]."""
    heads, tokens, width = x.shape
    return ops.reshape(ops.permute(x, (1, 0, 2)), (tokens, heads * width))


def swiglu_mlp(s: Scope, x: Node, hidden: int) -> Node:
    """down(silu(gate(x)) * up(x)), as wide as x, without biases."""
    gate = linear(s / "gate_proj", x, hidden, bias=False)
    up = linear(s / "up_proj", x, hidden, bias=False)
    return linear(s / "down_proj", ops.swiglu(gate, up), x.shape[-1], bias=False)
