"""Encoder files: both publishers' layouts, every dtype, and one clear line for anything else."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from encoder_files import hugging_face, meta, rounded, save
from vit import PATCH_WEIGHT, Weights, engine_layout, forward, random_weights

from engine.errors import CheckpointError
from engine.graph import Graph
from engine.interpret import interpret
from models.dinov3 import encode
from models.dinov3_files import load_encoder

DEPTH = 2
LAYOUTS = {"Hugging Face": hugging_face, "Meta": lambda weights: meta(hugging_face(weights))}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "Modelle ü" / "encoder.safetensors"


@pytest.fixture
def weights(rng: np.random.Generator, path: Path) -> Weights:
    path.parent.mkdir()
    return random_weights(DEPTH + 1, rng)


def wanted(weights: Weights, depth: int) -> Weights:
    """What the engine needs of the weights."""
    unused = tuple(f"layer.{number}." for number in range(depth, DEPTH + 1))
    return {n: v for n, v in engine_layout(weights).items() if not n.startswith(unused)}


def assert_same(got: Weights, want: Weights) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].dtype == np.float32 and got[name].shape == value.shape, name
        assert np.array_equal(got[name], value), name


@pytest.mark.parametrize("publisher", LAYOUTS)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_both_layouts_in_every_dtype(
    publisher: str, dtype: str, weights: Weights, path: Path
) -> None:
    file = save(LAYOUTS[publisher](weights), path, dtype)
    want = {name: rounded(value, dtype) for name, value in weights.items()}
    for depth in range(1, DEPTH + 2):
        assert_same(load_encoder(file, depth), wanted(want, depth))


def test_names_in_memory_are_known_too(weights: Weights, path: Path) -> None:
    file = hugging_face(weights)
    memory = {f"model.{n}" if n.startswith("layer.") else n: v for n, v in file.items()}
    assert_same(load_encoder(save(memory, path), DEPTH), wanted(weights, DEPTH))


def test_a_loaded_encoder_encodes_as_published(
    weights: Weights, path: Path, rng: np.random.Generator
) -> None:
    loaded = load_encoder(save(LAYOUTS["Meta"](weights), path), DEPTH)
    graph = Graph()
    tokens = encode(graph.input("image", (32, 48, 3)), DEPTH)
    image = rng.uniform(0, 1, (32, 48, 3)).astype(np.float32)
    (got,) = interpret(graph, loaded | {"image": image}, [tokens])
    assert np.allclose(got, forward(image, weights, DEPTH), rtol=1e-5, atol=1e-5)


# -- other files --


def complaint(path: Path, depth: int = DEPTH) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_encoder(path, depth)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize("publisher", LAYOUTS)
def test_too_few_layers(publisher: str, weights: Weights, path: Path) -> None:
    file = save(LAYOUTS[publisher](weights), path)
    message = complaint(file, DEPTH + 2)
    assert "choose a depth of 1 to 3, not 4" in message and f"{publisher}'s layout" in message


@pytest.mark.parametrize(
    ("publisher", "removed", "named"),
    [
        ("Hugging Face", "layer.0.attention.", "'layer.0.attention.k_proj.weight', "),
        ("Hugging Face", "layer.0.", "and 14 more"),
        ("Hugging Face", PATCH_WEIGHT, f"lacks '{PATCH_WEIGHT}'"),
        ("Meta", "blocks.1.attn.qkv.bias", "lacks 'blocks.1.attn.qkv.bias'"),
        ("Meta", "cls_token", "lacks 'cls_token'"),
    ],
)
def test_missing_tensors_are_named(
    publisher: str, removed: str, named: str, weights: Weights, path: Path
) -> None:
    tensors = LAYOUTS[publisher](weights)
    left = {name: value for name, value in tensors.items() if not name.startswith(removed)}
    message = complaint(save(left, path))
    assert named in message
    assert f"is no whole DINOv3 ViT-S/16 in {publisher}'s layout" in message


@pytest.mark.parametrize(
    ("publisher", "name", "shape"),
    [
        ("Hugging Face", PATCH_WEIGHT, (384, 3, 14, 14)),
        ("Hugging Face", PATCH_WEIGHT, (384, 768)),
        ("Hugging Face", "embeddings.cls_token", (1, 1, 768)),
        ("Hugging Face", "layer.1.mlp.up_proj.weight", (384, 1536)),
        ("Meta", "blocks.0.attn.qkv.weight", (384, 384)),
        ("Meta", "storage_tokens", (1, 5, 384)),
    ],
)
def test_wrong_shapes_are_named(
    publisher: str, name: str, shape: tuple[int, ...], weights: Weights, path: Path
) -> None:
    tensors = LAYOUTS[publisher](weights) | {name: np.zeros(shape, np.float32)}
    message = complaint(save(tensors, path))
    assert f"'{name}' has shape {list(shape)}" in message and f"{publisher}'s layout" in message


def test_a_layer_with_more_in_it_is_another_model(weights: Weights, path: Path) -> None:
    gate = {"layer.1.mlp.gate_proj.weight": np.zeros((1536, 384), np.float32)}
    file = save(hugging_face(weights) | gate, path)
    assert "that has no 'layer.1.mlp.gate_proj.weight'" in complaint(file)
    load_encoder(file, 1)  # below that layer nothing is different


@pytest.mark.parametrize(
    "periods", [10000 ** (np.arange(16) / 16), np.arange(1, 9), np.full(16, np.nan)]
)
def test_other_periods_are_another_model(periods: np.ndarray, weights: Weights, path: Path) -> None:
    tensors = LAYOUTS["Meta"](weights) | {"rope_embed.periods": periods.astype(np.float32)}
    assert "'rope_embed.periods' are not those of DINOv3" in complaint(save(tensors, path))


@pytest.mark.parametrize(
    "names",
    [
        ("decoder.coarse.weight", "decoder.coarse.bias"),
        ("patch_embed.proj.weight", "reg_token", "blocks.0.attn.q_bias"),  # timm
        ("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.norm1.weight"),
    ],
)
def test_unknown_layouts_show_some_of_their_names(names: tuple[str, ...], path: Path) -> None:
    path.parent.mkdir()
    message = complaint(save({name: np.zeros(1, np.float32) for name in names}, path))
    assert "neither 'embeddings.register_tokens' (Hugging Face) nor 'storage_tokens'" in message
    assert all(f"'{name}'" in message for name in names)


def test_values_that_are_not_finite(weights: Weights, path: Path) -> None:
    weights["layer.0.norm1.bias"][7] = np.inf
    message = complaint(save(hugging_face(weights), path))
    assert "'layer.0.norm1.bias' holds values that are not finite" in message


def test_folders_missing_truncated_and_foreign_files(weights: Weights, path: Path) -> None:
    assert "No such file" in complaint(path)
    assert "a folder: name the file in it" in complaint(path.parent)
    save(hugging_face(weights), path)
    os.truncate(path, path.stat().st_size - 1)
    assert "is not a whole safetensors file" in complaint(path)
    for content in (b"", b"<!DOCTYPE html>" * 9, b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(content)
        assert "is not a whole safetensors file" in complaint(path)


# -- .pth files that must not be trusted; real ones are in tests/parity --


def archive(path: Path, pickled: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("archive/data.pkl", pickled)
    return path


class Touch:
    """Makes a file when unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.where),)


def test_a_pickle_cannot_run_code(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    message = complaint(archive(path, pickle.dumps({"cls_token": Touch(made)})))
    assert "holds more than float tensors ('posix.mkdir'): save the state_dict() alone" in message
    path.write_bytes(pickle.dumps(Touch(made), protocol=2))
    assert "is not a whole file of PyTorch 1.6 or later" in complaint(path)
    assert not made.exists()


@pytest.mark.parametrize(
    "pickled", [b"", b"\x80\x02", b"\x80\x02X\xff\xff\xff\xff", b"\x80\x02}Q.", b"garbage"]
)
def test_pickles_that_are_none(pickled: bytes, path: Path) -> None:
    assert "its pickle cannot be read" in complaint(archive(path, pickled))


@pytest.mark.parametrize("value", [{}, [], {"epoch": 3}, {"model": {}}, None])
def test_pickles_of_something_else(value: object, path: Path) -> None:
    message = complaint(archive(path, pickle.dumps(value)))
    assert "save the model's state_dict() alone" in message


def test_zips_of_something_else(path: Path) -> None:
    assert "compressed" in complaint(archive(path, pickle.dumps({}), zipfile.ZIP_DEFLATED))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("model.safetensors", b"")
    path.write_bytes(buffer.getvalue())
    assert "not one that PyTorch wrote" in complaint(path)
    path.write_bytes(buffer.getvalue()[:20])
    assert "is not a whole file of PyTorch 1.6 or later" in complaint(path)
