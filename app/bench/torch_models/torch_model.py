"""What a network in PyTorch is, and the layers that several of them have.

Networks are functions of their published parameters in native layouts (dense weights are
[in, out]) and of their inputs, both by name. Nothing in them waits for the device or depends on
values, so that a CUDA graph can hold forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Part:
    """The parameters whose names begin with a prefix."""

    def __init__(self, all: Mapping[str, Tensor], prefix: str = "") -> None:
        self.all, self.prefix = all, prefix

    def __truediv__(self, name: str) -> Part:
        """A part of the part."""
        return Part(self.all, f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Tensor:
        """A parameter by the rest of its name."""
        return self.all[self.prefix + name]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.all


Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class TorchModel:
    """One network; the configurations are those of the engine's network."""

    forward: Callable[[Part, Inputs, Any], Tensor]
    """The output in its published shape."""
    loss: Callable[[Tensor, Inputs], Tensor]
    """The scalar that training minimises."""
    constants: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    """Further inputs, which depend on nothing but the configuration."""


def affine(p: Part, x: Tensor) -> Tensor:
    """X W, and + b where there is a bias."""
    y = x @ p["weight"]
    return y + p["bias"] if "bias" in p else y


def rms_norm(p: Part, x: Tensor) -> Tensor:
    """Root-mean-square normalisation with a learned weight."""
    return F.rms_norm(x, x.shape[-1:], p["weight"], 1e-5)


def layer_norm(p: Part, x: Tensor) -> Tensor:
    """Layer normalisation with learned weight and bias."""
    return F.layer_norm(x, x.shape[-1:], p["weight"], p["bias"], 1e-5)


def gated_mlp(p: Part, x: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x))."""
    hidden = F.silu(affine(p / "gate_proj", x)) * affine(p / "up_proj", x)
    return affine(p / "down_proj", hidden)


def attention(q: Tensor, k: Tensor, v: Tensor, width: int, *, causal: bool = False) -> Tensor:
    """Operands and result are [tokens, heads * width]; keys and values may have fewer heads."""
    q, k, v = (x.unflatten(1, (-1, width)).transpose(0, 1)[None] for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        # Fused kernels for f32 want as many heads everywhere.
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return mixed[0].transpose(0, 1).flatten(1)


def mean_square(y: Tensor, x: Inputs) -> Tensor:
    """Against zeros."""
    return y.square().mean()


def cross_entropy(y: Tensor, x: Inputs) -> Tensor:
    """Mean over rows, against the input "labels"."""
    return F.cross_entropy(y.flatten(0, -2), x["labels"])
