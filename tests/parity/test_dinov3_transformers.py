"""The encoder against the published model class, with random weights."""

from pathlib import Path

import numpy as np
import pytest
from cases import relative_l2
from device_runs import outputs
from encoder_files import meta, rounded, save
from vit import MEAN, STD, Weights

from engine.errors import CheckpointError
from engine.gpu import Gpu
from engine.graph import Graph
from models.dinov3 import encode
from models.dinov3_files import load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file

pytestmark = [pytest.mark.gpu, pytest.mark.reference]


def random_model(depth: int, **options: object):
    """A DINOv3 ViT-S/16 cut to `depth` blocks, every parameter random."""
    config = transformers.DINOv3ViTConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_attention_heads=6,
        num_hidden_layers=depth,
        num_register_tokens=4,
        patch_size=16,
        **options,
    )
    model = transformers.DINOv3ViTModel(config).eval()
    generator = torch.Generator().manual_seed(depth)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif "lambda" in name:
                parameter.copy_(0.5 + 0.3 * noise)
            else:
                parameter.copy_((0.05 if parameter.ndim > 1 else 0.2) * noise)
    return model


def tensors_of(model, dtype: str) -> Weights:
    """The model's weights rounded to what a file of `dtype` holds, in the model too."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rounded(parameter.numpy(), dtype)))
    return {name.removeprefix("model."): v.numpy() for name, v in model.state_dict().items()}


def assert_tokens_agree(
    gpu: Gpu, model, feeds: Weights, depth: int, height: int, width: int, rng: np.random.Generator
) -> None:
    """The device's tokens are hidden_states[depth], and their norm the model's output."""
    graph = Graph()
    graph.output("tokens", encode(graph.input("image", (height, width, 3)), depth))
    image = rng.uniform(0, 1, (height, width, 3)).astype(np.float32)
    got = outputs(gpu, graph, {**feeds, "image": image})["tokens"]
    pixels = torch.from_numpy(((image - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32))
    with torch.no_grad():
        result = model(pixels, output_hidden_states=True)
        normed = model.norm(torch.from_numpy(got)).numpy()
    wanted, last = result.hidden_states[depth][0].numpy(), result.last_hidden_state[0].numpy()
    assert relative_l2(got, wanted) < 1e-5
    assert relative_l2(normed, last) < 1e-5
    cosines = np.sum(got * wanted, 1) / np.linalg.norm(got, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() > 0.999


@pytest.mark.parametrize("depth", [1, 3, 12])
@pytest.mark.parametrize("height, width", [(224, 224), (160, 160), (32, 80)])
def test_tokens_from_a_saved_model(
    depth: int, height: int, width: int, gpu: Gpu, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = random_model(depth)
    model.save_pretrained(tmp_path)
    feeds = load_encoder(tmp_path / "model.safetensors", depth)
    assert_tokens_agree(gpu, model, feeds, depth, height, width, rng)


@pytest.mark.parametrize("depth", [1, 3, 12])
@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_tokens_of_rounded_weights(
    depth: int, dtype: str, gpu: Gpu, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = random_model(depth)
    file = save(tensors_of(model, dtype), tmp_path / "model.safetensors", dtype)
    feeds = load_encoder(file, depth)
    assert_tokens_agree(gpu, model, feeds, depth, 160, 160, rng)


def test_tokens_from_meta_s_file(gpu: Gpu, rng: np.random.Generator, tmp_path: Path) -> None:
    model = random_model(3)
    state = {n: torch.from_numpy(v) for n, v in meta(tensors_of(model, "F32")).items()}
    torch.save(state, tmp_path / "dinov3.pth")
    feeds = load_encoder(tmp_path / "dinov3.pth", 3)
    assert_tokens_agree(gpu, model, feeds, 3, 224, 224, rng)


@pytest.mark.parametrize("depth", [1, 3, 12])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_all_files_of_the_same_weights_load_alike(depth: int, dtype: str, tmp_path: Path) -> None:
    tensors = tensors_of(random_model(12), dtype)
    torch_dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    torch.save(
        {n: torch.from_numpy(v).to(torch_dtype) for n, v in meta(tensors).items()},
        tmp_path / "meta.pth",
    )
    wanted = load_encoder(save(tensors, tmp_path / "hugging_face.safetensors", dtype), depth)
    for file in (save(meta(tensors), tmp_path / "meta.safetensors", dtype), tmp_path / "meta.pth"):
        got = load_encoder(file, depth)
        assert got.keys() == wanted.keys()
        assert all(np.array_equal(got[name], wanted[name]) for name in wanted)


def test_the_gated_model_of_the_same_shapes_is_refused(tmp_path: Path) -> None:
    random_model(1, use_gated_mlp=True, hidden_act="silu").save_pretrained(tmp_path)  # as ViT-S+
    with pytest.raises(CheckpointError, match=r"that has no 'layer\.0\.mlp\.gate_proj\.bias'"):
        load_encoder(tmp_path / "model.safetensors", 1)


def test_names_in_memory_load_like_names_in_files(tmp_path: Path) -> None:
    model = random_model(1)
    model.save_pretrained(tmp_path)
    save_file(model.state_dict(), tmp_path / "memory.safetensors")
    saved = load_encoder(tmp_path / "model.safetensors", 1)
    memory = load_encoder(tmp_path / "memory.safetensors", 1)
    assert saved.keys() == memory.keys()
    assert all(np.array_equal(saved[name], memory[name]) for name in saved)
