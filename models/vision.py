"""The two programs of DinoVision: learning to paint an image back, and painting it.

Both are built from the same encoder and decoder definitions, so a parameter has one name in
training, in deployment and in checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine import ops
from engine.graph import Graph, Node
from engine.optim import Optimizer, minimize
from models.decoder import decode
from models.dinov3 import DEFAULT_DEPTH, PATCH, WIDTH, encode, patch_tokens
from models.nn import Scope
from models.waves import cosine, sine
from models.workload import Workload, norms

IMAGE = 224
COMPONENTS = 3


def training_graph(
    optimizer: Optimizer, *, depth: int = DEFAULT_DEPTH, size: int = IMAGE, batch: int = 1
) -> Graph:
    """One learning step on one image, or on a batch of several.

    Input "image" [size, size, 3] in 0..1, with batch > 1 [batch, size, size, 3]; output "loss" [1],
    the mean squared error over all pixels; effect: the decoder's parameters are updated. The
    encoder is frozen.
    """
    graph = Graph()
    image = graph.input("image", (size, size, 3) if batch == 1 else (batch, size, size, 3))
    tokens = patch_tokens(encode(image, depth))
    painted = decode(tokens, (size // PATCH, size // PATCH))
    loss = ops.reduce_mean(ops.square(ops.sub(painted, image)), range(len(image.shape)))
    graph.output("loss", loss)
    minimize(loss, optimizer)
    return graph


def inference_graph(*, depth: int = DEFAULT_DEPTH, size: int = IMAGE) -> Graph:
    """Paint one image and colour its tokens.

    Inputs "image" [size, size, 3], "components.basis" [3, 384] and "components.offset" [3];
    outputs "painted" [size, size, 3], "error" [1], its mean squared error over all pixels, "tokens"
    [patches, 384] and "components" [patches, 3], which is tokens @ basis^T + offset: the first
    principal components, once the host has found them.
    """
    graph = Graph()
    image = graph.input("image", (size, size, 3))
    tokens = patch_tokens(encode(image, depth))
    painted = graph.output("painted", decode(tokens, (size // PATCH, size // PATCH)))
    graph.output("error", ops.mse(painted, image))
    graph.output("tokens", tokens)
    basis = graph.input("components.basis", (COMPONENTS, WIDTH))
    offset = graph.input("components.offset", (COMPONENTS,))
    graph.output("components", ops.linear(tokens, basis, offset))
    return graph


@dataclass(frozen=True)
class VisionConfig:
    """Blocks of the encoder, and the side of the image in pixels, a multiple of 16."""

    depth: int = DEFAULT_DEPTH
    size: int = IMAGE


def _paint(s: Scope, config: VisionConfig) -> Node:
    """Input "image" [size, size, 3] -> the same painted from its tokens."""
    image = s.graph.input("image", (config.size, config.size, 3))
    tokens = patch_tokens(encode(image, config.depth, scope=replace(s, trainable=False)))
    return decode(tokens, (config.size // PATCH, config.size // PATCH), scope=s)


def _painting_loss(painted: Node, config: VisionConfig) -> Node:
    return ops.mse(painted, painted.graph.input("target", painted.shape))


def _images(config: VisionConfig) -> dict[str, np.ndarray]:
    shape = (config.size, config.size, 3)
    half = np.float32(0.5)
    return {"image": half + half * sine(0.01, shape), "target": half + half * cosine(0.01, shape)}


DINOVISION = Workload(
    name="DinoVision",
    full=VisionConfig(),
    latency=VisionConfig(),
    reduced=VisionConfig(depth=1, size=32),
    sized=lambda pixels: VisionConfig(size=pixels),
    forward=_paint,
    loss=_painting_loss,
    inputs=_images,
    has_golden=False,
    fixed=lambda name: 1.0 if name.endswith("lambda1") else norms(name),
)
"""Of one image, for the benchmark: what the two programs have in common, without the optimiser."""
