"""The encoder against the published model class, with random weights."""

from pathlib import Path

import numpy as np
import pytest
from cases import relative_l2
from device_runs import outputs
from vit import MEAN, STD

from engine.gpu import Gpu
from engine.graph import Graph
from models.dinov3 import encode, load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.gpu, pytest.mark.reference]


def random_model(depth: int):
    """A DINOv3 ViT-S/16 cut to `depth` blocks, every parameter random."""
    config = transformers.DINOv3ViTConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_attention_heads=6,
        num_hidden_layers=depth,
        num_register_tokens=4,
        patch_size=16,
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


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("height, width", [(224, 224), (32, 80)])
def test_tokens_from_a_saved_model(
    depth: int, height: int, width: int, gpu: Gpu, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = random_model(depth)
    model.save_pretrained(tmp_path)
    graph = Graph()
    graph.output("tokens", encode(graph.input("image", (height, width, 3)), depth))
    image = rng.uniform(0, 1, (height, width, 3)).astype(np.float32)
    feeds = load_encoder(tmp_path / "model.safetensors", depth)
    got = outputs(gpu, graph, {**feeds, "image": image})["tokens"]
    pixels = torch.from_numpy(((image - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32))
    with torch.no_grad():
        result = model(pixels, output_hidden_states=True)
        normed = model.norm(torch.from_numpy(got))
    assert relative_l2(got, result.hidden_states[depth][0].numpy()) < 1e-5
    assert relative_l2(normed.numpy(), result.last_hidden_state[0].numpy()) < 1e-5


def test_names_in_memory_load_like_names_in_files(tmp_path: Path) -> None:
    model = random_model(1)
    model.save_pretrained(tmp_path)
    from safetensors.torch import save_file

    save_file(model.state_dict(), tmp_path / "memory.safetensors")
    saved = load_encoder(tmp_path / "model.safetensors", 1)
    memory = load_encoder(tmp_path / "memory.safetensors", 1)
    assert saved.keys() == memory.keys()
    assert all(np.array_equal(saved[name], memory[name]) for name in saved)
