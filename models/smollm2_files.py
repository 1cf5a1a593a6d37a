"""Folders of Hugging Face with a model of the LLaMA kind, such as SmolLM2: sizes and weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import CheckpointError
from models.published import load_published
from models.smollm2 import SmolLm2Config
from models.smollm2_cached import continuation

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"

SIZES = {
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
}
"""Sizes of ours by their names in the file."""
EXPECTED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_interleaved": False,
}
"""What other models of the kind may have, and this network has not."""


@dataclass(frozen=True)
class LanguageModel:
    """What a folder says of its model: sizes, longest text in tokens, tokens that end a text."""

    folder: Path
    sizes: SmolLm2Config
    context: int
    begin: int | None
    """The token that an empty text begins with, if there is one."""
    ends: frozenset[int]

    @staticmethod
    def read(folder: Path) -> LanguageModel:
        """From config.json and, where there is one, generation_config.json.

        Raises CheckpointError for a folder without them, and for models of another kind.
        """
        path = folder / CONFIG
        data = _Config(path, _json(path))
        for key, value in EXPECTED.items():
            if data.values.get(key, value) != value:
                found = data.values[key]
                raise CheckpointError(f"{path}: '{key}' is {found!r}, only {value!r} is supported")
        sizes = {ours: data.size(theirs) for ours, theirs in SIZES.items()}
        head = data.size("head_dim", sizes["hidden"] // sizes["heads"])
        if head % 2:
            raise CheckpointError(f"{path}: 'head_dim' must be even, not {head}")
        kv_heads = data.size("num_key_value_heads", sizes["heads"])
        if sizes["heads"] % kv_heads:
            raise CheckpointError(f"{path}: {sizes['heads']} heads cannot share {kv_heads} of keys")
        further = _json(folder / GENERATION) if (folder / GENERATION).exists() else {}
        ends = further.get("eos_token_id", data.values.get("eos_token_id"))
        begin = data.values.get("bos_token_id")
        return LanguageModel(
            folder,
            SmolLm2Config(
                **sizes,
                kv_heads=kv_heads,
                head=head,
                theta=data.theta(),
                eps=data.number("rms_norm_eps", 1e-6),
                tied=bool(data.values.get("tie_word_embeddings", False)),
            ),
            data.size("max_position_embeddings"),
            begin if isinstance(begin, int) else None,
            frozenset(
                end for end in (ends if isinstance(ends, list) else [ends]) if end is not None
            ),
        )

    def parameters(self) -> dict[str, np.ndarray]:
        """The weights, f32 as the engine has them, by name. Raises CheckpointError."""
        layouts = continuation(self.sizes, 1, 1).layouts
        what = f"model of the sizes in {CONFIG}"
        return load_published("smollm2", what, layouts, self.folder / WEIGHTS)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror or error}; name a folder of Hugging Face with "
            f"{CONFIG}, {WEIGHTS} and tokenizer.json"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no settings")
    return data


@dataclass(frozen=True)
class _Config:
    """Settings that are checked when they are asked for."""

    path: Path
    values: dict[str, Any]

    def size(self, key: str, otherwise: int | None = None) -> int:
        """A whole number above 0; null is as good as nothing."""
        value = self.values.get(key)
        value = otherwise if value is None else value
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{self.path}: '{key}' must be a number above 0, not {value!r}")
        return value

    def number(self, key: str, otherwise: float) -> float:
        """A number above 0."""
        value = self.values.get(key, otherwise)
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise CheckpointError(f"{self.path}: '{key}' must be a number above 0, not {value!r}")
        return float(value)

    def theta(self) -> float:
        """The base of the rotation, which newer files keep among its parameters."""
        rope = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else "?"
        if kind != "default":
            raise CheckpointError(f"{self.path}: positions of the kind '{kind}' are not supported")
        if "rope_theta" in rope:
            return _Config(self.path, rope).number("rope_theta", 1e4)
        return self.number("rope_theta", 1e4)
