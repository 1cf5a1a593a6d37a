"""The DINOv3 ViT-S/16 forward pass in plain NumPy, written from its published description.

Shares nothing with `models.dinov3` but the parameter names of the published checkpoint; the patch
weight is in the checkpoint's layout (384, 3, 16, 16).
"""

from __future__ import annotations

import math

import numpy as np

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
PATCH_WEIGHT = "embeddings.patch_embeddings.weight"
Weights = dict[str, np.ndarray]


def random_weights(depth: int, rng: np.random.Generator) -> Weights:
    """Every parameter random, at scales at which every one of them matters."""
    shapes: dict[str, tuple[tuple[int, ...], float, float]] = {
        "embeddings.cls_token": ((1, 384), 0, 0.5),
        "embeddings.register_tokens": ((4, 384), 0, 0.5),
        PATCH_WEIGHT: ((384, 3, 16, 16), 0, 0.04),
        "embeddings.patch_embeddings.bias": ((384,), 0, 0.2),
    }
    for number in range(depth):
        layer = f"layer.{number}"
        for norm in ("norm1", "norm2"):
            shapes[f"{layer}.{norm}.weight"] = ((384,), 1, 0.3)
            shapes[f"{layer}.{norm}.bias"] = ((384,), 0, 0.3)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{layer}.attention.{name}.weight"] = ((384, 384), 0, 0.06)
            if name != "k_proj":
                shapes[f"{layer}.attention.{name}.bias"] = ((384,), 0, 0.2)
        shapes[f"{layer}.mlp.up_proj.weight"] = ((1536, 384), 0, 0.05)
        shapes[f"{layer}.mlp.up_proj.bias"] = ((1536,), 0, 0.2)
        shapes[f"{layer}.mlp.down_proj.weight"] = ((384, 1536), 0, 0.03)
        shapes[f"{layer}.mlp.down_proj.bias"] = ((384,), 0, 0.2)
        for scale in ("layer_scale1", "layer_scale2"):
            shapes[f"{layer}.{scale}.lambda1"] = ((384,), 0.5, 0.3)
    return {
        name: rng.normal(mean, std, shape).astype(np.float32)
        for name, (shape, mean, std) in shapes.items()
    }


def engine_layout(weights: Weights) -> Weights:
    """The same weights with the patch weight flattened as (y, x, channel)."""
    patch = weights[PATCH_WEIGHT].transpose(0, 2, 3, 1).reshape(384, 768)
    return {**weights, PATCH_WEIGHT: np.ascontiguousarray(patch)}


def _norm(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    spread = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return (x - x.mean(axis=1, keepdims=True)) / spread * w[f"{name}.weight"] + w[f"{name}.bias"]


def _linear(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.zeros(1))


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _rotate(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Rotate the patch tokens of one head, x [5 + patches, 64]; prefix tokens stay."""
    result = x.copy()
    for patch in range(rows * columns):
        i, j = divmod(patch, columns)
        angles = np.empty(64)
        for f in range(16):
            period = 100 ** (f / 16)
            angles[f] = 2 * math.pi * (2 * (i + 0.5) / rows - 1) / period
            angles[16 + f] = 2 * math.pi * (2 * (j + 0.5) / columns - 1) / period
        angles[32:] = angles[:32]
        token = x[5 + patch]
        half = np.concatenate([-token[32:], token[:32]])
        result[5 + patch] = token * np.cos(angles) + half * np.sin(angles)
    return result


def _attention(x: np.ndarray, w: Weights, name: str, rows: int, columns: int) -> np.ndarray:
    q, k, v = (_linear(x, w, f"{name}.{part}_proj") for part in "qkv")
    heads = []
    for h in range(6):
        of_head = slice(64 * h, 64 * h + 64)
        scores = _rotate(q[:, of_head], rows, columns) @ _rotate(k[:, of_head], rows, columns).T / 8
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, of_head])
    return _linear(np.concatenate(heads, axis=1), w, f"{name}.o_proj")


def forward(image: np.ndarray, weights: Weights, depth: int) -> np.ndarray:
    """Residual stream [5 + patches, 384] after `depth` blocks, in float64; image [h, w, 3]."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    rows, columns = image.shape[0] // 16, image.shape[1] // 16
    pixels = (image.astype(np.float64) - MEAN) / STD
    patches = []
    for i in range(rows):
        for j in range(columns):
            window = pixels[16 * i : 16 * i + 16, 16 * j : 16 * j + 16].transpose(2, 0, 1)
            patches.append(w[PATCH_WEIGHT].reshape(384, -1) @ window.ravel())
    embedded = np.array(patches) + w["embeddings.patch_embeddings.bias"]
    prefix = w["embeddings.cls_token"], w["embeddings.register_tokens"]
    x = np.concatenate([*prefix, embedded])
    for number in range(depth):
        layer = f"layer.{number}"
        a = _attention(_norm(x, w, f"{layer}.norm1"), w, f"{layer}.attention", rows, columns)
        x = x + a * w[f"{layer}.layer_scale1.lambda1"]
        hidden = _gelu(_linear(_norm(x, w, f"{layer}.norm2"), w, f"{layer}.mlp.up_proj"))
        x = x + _linear(hidden, w, f"{layer}.mlp.down_proj") * w[f"{layer}.layer_scale2.lambda1"]
    return x
