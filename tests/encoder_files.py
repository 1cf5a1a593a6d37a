"""Encoder files as publishers lay them out, made from the weights of `vit.random_weights`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from vit import Weights


def hugging_face(weights: Weights) -> Weights:
    """Tokens have a batch axis; a mask token and a final norm come besides."""
    file = dict(weights)
    for name in ("embeddings.cls_token", "embeddings.register_tokens"):
        file[name] = file[name].reshape(1, -1, 384)
    unused = {"embeddings.mask_token": (1, 1, 384), "norm.weight": (384,), "norm.bias": (384,)}
    return {name: np.ones(shape, np.float32) for name, shape in unused.items()} | file


def meta(file: Weights) -> Weights:
    """The same tensors as Meta's model class names them, from Hugging Face's layout.

    The masked bias of the keys holds NaN, as in a module before its mask is applied.
    """
    renamed = {
        "embeddings.cls_token": "cls_token",
        "embeddings.register_tokens": "storage_tokens",
        "embeddings.mask_token": "mask_token",
        "embeddings.patch_embeddings.weight": "patch_embed.proj.weight",
        "embeddings.patch_embeddings.bias": "patch_embed.proj.bias",
    }
    result = {"rope_embed.periods": rounded(100 ** (np.arange(16) / 16), "BF16")}
    for name, value in file.items():
        layer, _, rest = name.removeprefix("layer.").partition(".")
        if not name.startswith("layer."):
            result[renamed.get(name, name)] = value
        elif rest.startswith("attention.o_proj"):
            result[f"blocks.{layer}.attn.proj.{rest.rpartition('.')[2]}"] = value
        elif not rest.startswith("attention"):
            for theirs, metas in (
                ("layer_scale1.lambda1", "ls1.gamma"),
                ("layer_scale2.lambda1", "ls2.gamma"),
                ("mlp.up_proj", "mlp.fc1"),
                ("mlp.down_proj", "mlp.fc2"),
            ):
                rest = rest.replace(theirs, metas)
            result[f"blocks.{layer}.{rest}"] = value
    result["mask_token"] = result["mask_token"][0]
    for layer in {name.split(".")[1] for name in file if name.startswith("layer.")}:
        attention, block = f"layer.{layer}.attention", f"blocks.{layer}.attn.qkv"
        weights = [file[f"{attention}.{part}_proj.weight"] for part in "qkv"]
        q, v = (file[f"{attention}.{part}_proj.bias"] for part in "qv")
        result[f"{block}.weight"] = np.concatenate(weights)
        result[f"{block}.bias"] = np.concatenate([q, np.full_like(q, np.nan), v])
        result[f"{block}.bias_mask"] = np.repeat(np.array([1, 0, 1], np.float32), 384)
    return result


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """F32 with the nearest values that F32, F16 or BF16 can hold."""
    value = value.astype(np.float32)
    if dtype == "F16":
        return value.astype(np.float16).astype(np.float32)
    if dtype == "F32":
        return value
    bits = value.view(np.uint32).astype(np.uint64)
    even = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(value), value, (even >> 16 << 16).astype(np.uint32).view(np.float32))


def save(tensors: Weights, path: Path, dtype: str = "F32") -> Path:
    """Write a safetensors file of the given dtype; the library's NumPy half knows no bf16."""
    header, data = {}, b""
    for name, value in tensors.items():
        value = np.ascontiguousarray(rounded(value, dtype))
        if dtype == "F16":
            value = value.astype(np.float16)
        elif dtype == "BF16":
            value = (value.view(np.uint32) >> 16).astype(np.uint16)
        start, data = len(data), data + value.tobytes()
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path
