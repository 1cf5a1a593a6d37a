"""The decoder that learns live: 14 x 14 patch tokens back to a 224 x 224 RGB image.

Two paths share 2.03 M parameters and 1.2 GMAC at 14 x 14 tokens. A linear map from each token to
its 16 x 16 pixels paints a coarse picture within seconds; a residual convolutional path, one
block at each of three resolutions, adds what neighbours know. The tokens are not normalised on
entry: their length carries contrast, and learning without it is several dB worse.
"""

from __future__ import annotations

from math import sqrt

from engine import ops
from engine.graph import Node
from models.nn import Scope, conv3x3, layer_norm, linear, pixel_shuffle

STAGES = ((232, 1), (128, 2), (96, 2))
"""(channels, upsampling factor on entry) per resolution."""
HEAD = 4
"""Pixels that the head paints per position and axis."""
PATCH = 16


def decode(
    tokens: Node, grid: tuple[int, int], *, trainable: bool = True, scope: Scope | None = None
) -> Node:
    """Patch tokens [rows * columns, width] -> RGB [16 * rows, 16 * columns, 3] in 0..1.

    Tokens [n, rows * columns, width] give n images [n, 16 * rows, 16 * columns, 3]. Parameters
    "decoder.*" are declared in `scope`, by default the graph's own.
    """
    rows, columns = grid
    s = (scope or Scope(tokens.graph, "", trainable)) / "decoder"
    *batch, _, width = tokens.shape
    tokens = ops.reshape(tokens, (-1, rows, columns, width))
    x = tokens
    for number, (channels, factor) in enumerate(STAGES):
        stage = s / f"stage.{number}"
        x = linear(stage / "enter", x, channels * factor**2)
        if factor > 1:
            x = pixel_shuffle(x, factor)
        x = _residual(stage / "block", x)
    x = ops.gelu(layer_norm(s / "norm_out", x))
    detail = pixel_shuffle(conv3x3(s / "head", x, 3 * HEAD**2, gain=0.1), HEAD)
    coarse = pixel_shuffle(linear(s / "coarse", tokens, 3 * PATCH**2), PATCH)
    x = ops.add(detail, coarse)
    return ops.sigmoid(ops.reshape(x, (*batch, *x.shape[1:])))


def _residual(s: Scope, x: Node) -> Node:
    hidden = ops.gelu(conv3x3(s / "conv1", layer_norm(s / "norm", x), x.shape[-1], gain=sqrt(2)))
    return ops.add(x, conv3x3(s / "conv2", hidden, x.shape[-1], gain=0.5))
