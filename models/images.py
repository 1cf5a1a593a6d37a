"""Layers over images [n, h, w, c], and the way there from NCHW and back."""

from __future__ import annotations

from math import sqrt

from engine import ops
from engine.graph import Node
from models import layouts
from models.nn import Scope, constant, normal


def to_nhwc(x: Node) -> Node:
    """[n, c, h, w] -> [n, h, w, c]."""
    return ops.permute(x, (0, 2, 3, 1))


def to_nchw(x: Node) -> Node:
    """[n, h, w, c] -> [n, c, h, w]."""
    return ops.permute(x, (0, 3, 1, 2))


def conv2d(
    s: Scope, x: Node, width: int, kernel: int, *, stride: int = 1, padding: int = 0
) -> Node:
    """Convolution to `width` channels without a bias; `kernel`, `stride`, `padding` in pixels."""
    layout = layouts.conv(width, x.shape[-1], kernel, kernel)
    init = normal(sqrt(1.0 / layout.engine[1]))
    weight = s.parameter("weight", layout.engine, init, layout)
    return ops.conv2d(x, weight, None, kernel, stride=stride, padding=padding)


def group_norm(s: Scope, x: Node, groups: int, *, eps: float = 1e-5, silu: bool = False) -> Node:
    """Group normalisation with learned weight and bias; SiLU follows if asked."""
    channels = x.shape[-1:]
    weight = s.parameter("weight", channels, constant(1.0))
    bias = s.parameter("bias", channels, constant(0.0))
    return ops.group_norm(x, weight, bias, groups, eps=eps, silu=silu)
