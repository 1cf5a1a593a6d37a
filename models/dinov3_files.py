"""Published DINOv3 ViT-S/16 files: Hugging Face's and Meta's names, safetensors and .pth.

What the layouts differ in: Meta keeps queries, keys and values in one tensor, with a bias for the
keys that its own code masks (any content is ignored here), and stores the periods of the rotation,
rounded to bf16. The periods are always computed, as Hugging Face does, so that the same weights
give the same tokens in every layout; the rounding would move tokens by 1 to 3e-4 of their size
(docs/measurements.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.checkpoint import Checkpoint, save_checkpoint
from engine.errors import CheckpointError
from engine.graph import Graph
from models import layouts
from models.dinov3 import DEFAULT_DEPTH, PATCH, PERIODS, REGISTERS, WIDTH, encode
from models.layouts import Layout
from models.weight_files import listed, read_weights

BF16_ROUNDING = 2.0**-8


@dataclass(frozen=True)
class Naming:
    """How a publisher names the tensors: replacements, in this order, in Hugging Face's names."""

    publisher: str
    mark: str
    """A tensor that tells these names from others."""
    layer: str
    """Prefix of the layers; a number and a dot follow."""
    replacements: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    """Endings of tensors in layers that mean nothing for the result."""
    packed: str | None = None
    """Stands for q_proj, k_proj and v_proj alike: each is a third of one tensor."""

    def source(self, name: str) -> tuple[str, int | None]:
        """The tensor in the file that holds parameter `name`, and which third of it."""
        third = None
        if self.packed and (found := re.search(r"\.([qkv])_proj\.", name)):
            third = "qkv".index(found[1])
            name = name.replace(f"{found[1]}_proj", self.packed)
        for theirs, ours in self.replacements:
            name = name.replace(theirs, ours)
        return name, third


HUGGING_FACE = Naming("Hugging Face", "embeddings.register_tokens", "layer.")
META = Naming(
    "Meta",
    "storage_tokens",
    "blocks.",
    replacements=(
        ("embeddings.cls_token", "cls_token"),
        ("embeddings.register_tokens", "storage_tokens"),
        ("embeddings.patch_embeddings.", "patch_embed.proj."),
        ("layer.", "blocks."),
        (".attention.", ".attn."),
        (".o_proj.", ".proj."),
        (".layer_scale1.lambda1", ".ls1.gamma"),
        (".layer_scale2.lambda1", ".ls2.gamma"),
        (".mlp.up_proj.", ".mlp.fc1."),
        (".mlp.down_proj.", ".mlp.fc2."),
    ),
    ignored=(".attn.qkv.bias_mask",),
    packed="qkv",
)
META_PERIODS = "rope_embed.periods"

PUBLISHED: Mapping[str, Layout] = {
    "embeddings.cls_token": Layout((1, 1, WIDTH), (0, 1, 2), (1, WIDTH)),
    "embeddings.mask_token": Layout((1, 1, WIDTH), (0, 1, 2), (1, WIDTH)),
    "embeddings.register_tokens": Layout((1, REGISTERS, WIDTH), (0, 1, 2), (REGISTERS, WIDTH)),
    "embeddings.patch_embeddings.weight": layouts.conv(WIDTH, 3, PATCH, PATCH),
}
"""Parameters that the engine stores in another shape than files do."""

BESIDE = ("embeddings.mask_token", "norm.weight", "norm.bias")
"""Tensors of a published file that encoding up to a layer does not need."""


def load_encoder(path: Path, depth: int = DEFAULT_DEPTH) -> dict[str, np.ndarray]:
    """The parameters of the first `depth` layers, f32 as the engine stores them, by name.

    Raises CheckpointError for anything but a whole DINOv3 ViT-S/16, naming what is wrong.
    """
    file = _read(path)
    naming = _recognise(file)
    shapes = _engine_shapes(depth)
    sources = {name: naming.source(name) for name in shapes}
    _check_names(file, naming, depth, {key for key, _ in sources.values()})
    _check_periods(file)
    values = {}
    for name, (key, third) in sources.items():
        layout = PUBLISHED.get(name) or layouts.unchanged(*shapes[name])
        values[name] = layout.to_engine(_tensor(file, naming, key, third, layout.native))
    return values


def save_encoder(
    path: Path, tensors: Mapping[str, np.ndarray], depth: int, metadata: Mapping[str, str]
) -> None:
    """Write the first `depth` layers in Hugging Face's layout, f16, from the engine's tensors.

    Those named in BESIDE go into the file too, others do not. Atomic; equal contents give equal
    bytes. Raises CheckpointError if a value is beyond f16, or when the disk refuses.
    """
    stored = {}
    for name in (*_engine_shapes(depth), *BESIDE):
        value = tensors[name]
        layout = PUBLISHED.get(name) or layouts.unchanged(*value.shape)
        stored[name] = layout.to_native(value).astype(np.float16)
        if not np.isfinite(stored[name]).all():
            raise CheckpointError(f"cannot write {path}: '{name}' holds values beyond f16")
    save_checkpoint(path, stored, metadata)


def _read(path: Path) -> Checkpoint:
    file = read_weights(path)
    # In memory, transformers 5 puts "model." before the layers.
    tensors = {name.removeprefix("model."): value for name, value in file.tensors.items()}
    return replace(file, tensors=tensors)


def _recognise(file: Checkpoint) -> Naming:
    """Which names a file uses."""
    for naming in (HUGGING_FACE, META):
        if naming.mark in file.tensors:
            return naming
    raise CheckpointError(
        f"{file.path} is not a DINOv3 ViT-S/16 checkpoint: it has neither '{HUGGING_FACE.mark}' "
        f"(Hugging Face) nor '{META.mark}' (Meta), but {listed(file.tensors) or 'nothing'}"
    )


def _engine_shapes(depth: int) -> dict[str, tuple[int, ...]]:
    graph = Graph()
    encode(graph.input("image", (PATCH, PATCH, 3)), depth)
    return {node.name: node.shape for node in graph.parameters()}


def _check_names(file: Checkpoint, naming: Naming, depth: int, needed: set[str]) -> None:
    """Every needed tensor is there, and the layers hold nothing that would go unused."""
    what = f"DINOv3 ViT-S/16 in {naming.publisher}'s layout"
    layer = re.compile(rf"{re.escape(naming.layer)}(\d+)\.")
    found = {name: int(match[1]) for name in file.tensors if (match := layer.match(name))}
    layers = len(set(found.values()))
    if 0 < layers < depth and set(found.values()) == set(range(layers)):
        raise CheckpointError(
            f"{file.path} has {layers} layers of {what}: choose a depth of 1 to {layers}, "
            f"not {depth}"
        )
    if missing := sorted(needed - file.tensors.keys()):
        raise CheckpointError(f"{file.path} is no whole {what}: it lacks {listed(missing)}")
    used = (name for name, number in found.items() if number < depth)
    # ViT-S+ differs from ViT-S only by tensors that it has besides.
    if surplus := sorted(n for n in used if n not in needed and not n.endswith(naming.ignored)):
        raise CheckpointError(f"{file.path} is no {what}: that has no {listed(surplus)}")


def _check_periods(file: Checkpoint) -> None:
    periods = file.tensors.get(META_PERIODS)
    if periods is not None and (
        periods.shape != PERIODS.shape or not np.allclose(periods, PERIODS, BF16_ROUNDING, 0)
    ):
        raise CheckpointError(
            f"{file.path}: '{META_PERIODS}' are not those of DINOv3 ViT-S/16, 1 to 74.99"
        )


def _tensor(
    file: Checkpoint, naming: Naming, key: str, third: int | None, shape: tuple[int, ...]
) -> np.ndarray:
    """A tensor of the file, or a third of it along the first axis."""
    value = file.tensors[key]
    expected = shape if third is None else (3 * shape[0], *shape[1:])
    if value.shape != expected:
        raise CheckpointError(
            f"{file.path}: '{key}' has shape {list(value.shape)}, DINOv3 ViT-S/16 in "
            f"{naming.publisher}'s layout has {list(expected)}"
        )
    if third is not None:
        value = value[third * shape[0] : (third + 1) * shape[0]]
    if not np.isfinite(value).all():
        raise CheckpointError(f"{file.path}: '{key}' holds values that are not finite")
    return value
