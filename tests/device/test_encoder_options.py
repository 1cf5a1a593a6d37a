"""Other depths, image sizes and encoder files, from the command line to the painted image."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from encoder_files import hugging_face, meta, save
from vit import random_weights

from app.cli import main
from app.encoder import RANDOM_ENCODER
from app.network import Network, NetworkConfig
from app.pixels import psnr_db, to_unit
from engine.checkpoint import save_checkpoint
from engine.gpu import Gpu
from models.dinov3_files import load_encoder
from tests.command_line import fails

pytestmark = pytest.mark.gpu

RUN = "preview --headless --eye-size 32 --held-out 0 --job both --frames 8 --chunks 1".split()


def learn(network: Network, image: np.ndarray, steps: int) -> None:
    """Training steps on one image, the last one published."""
    for _ in range(steps):
        network.write_step(to_unit(image))
        encoder = network.gpu.device.create_command_encoder()
        network.train.encode(encoder)
        network.publish(encoder)
        network.gpu.submit(encoder)
        network.step += 1


@pytest.mark.parametrize(("depth", "size"), [(1, 48), (12, 16)])
def test_any_depth_and_size_learns(
    depth: int, size: int, gpu: Gpu, rng: np.random.Generator
) -> None:
    network = Network(gpu, NetworkConfig("random", depth=depth, size=size))
    blocks = rng.integers(0, 256, (size // 8, size // 8, 3), np.uint8)
    image = blocks.repeat(8, axis=0).repeat(8, axis=1)
    (before,) = network.errors(image[None])
    learn(network, image, 10)
    (after,) = network.errors(image[None])
    assert psnr_db(after) > psnr_db(before) + 2
    painted = network.infer.read("painted").astype(np.float64)
    assert after == pytest.approx(np.mean((painted - to_unit(image)) ** 2), rel=1e-5)
    assert network.infer.read("painted").shape == (size, size, 3)
    assert network.infer.read("tokens").shape == ((size // 16) ** 2, 384)


def test_a_file_s_layers_are_those_in_use(
    gpu: Gpu, rng: np.random.Generator, tmp_path: Path
) -> None:
    path = save(meta(hugging_face(random_weights(3, rng))), tmp_path / "meta.safetensors", "BF16")
    image = rng.integers(0, 256, (32, 32, 3), np.uint8)
    for depth in (1, 3):
        network = Network(gpu, NetworkConfig(str(path), depth=depth, size=32))
        assert network.encoder.note == "encoder: meta.safetensors"
        for name, value in load_encoder(path, depth).items():
            assert np.array_equal(network.infer.read(name), value)
        network.errors(image[None])
        tokens = network.infer.read("tokens")
        assert np.isfinite(tokens).all() and tokens.std() > 0.1


def test_a_decoder_of_another_depth_is_told(
    gpu: Gpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(gpu, NetworkConfig("random", depth=2, size=32))
    path = tmp_path / "decoder.safetensors"
    save_checkpoint(path, network.train.snapshot(["parameter", "state"]), network.metadata(0))
    Network(gpu, NetworkConfig("random", path, depth=2, size=48))
    assert not caplog.records
    Network(gpu, NetworkConfig("random", path, depth=1, size=32))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (record,) = caplog.records
    assert f"'{RANDOM_ENCODER}, depth 2', not on '" in record.getMessage()


def test_a_preview_with_a_meta_file(tmp_path: Path, rng: np.random.Generator) -> None:
    path = save(meta(hugging_face(random_weights(2, rng))), tmp_path / "é.safetensors", "F16")
    out = tmp_path / "out"
    options = ["--encoder", str(path), "--depth", "2", "--input-size", "48", "--out", str(out)]
    assert main([*RUN, *options]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["encoder"] == "encoder: é.safetensors" and summary["outcome"] == "ok"
    assert summary["objects_created_in_loop"] == 0


def test_too_few_layers_are_one_line(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(hugging_face(random_weights(1, rng)), tmp_path / "one.safetensors")
    line = fails(capsys, 1, *RUN, "--out", str(tmp_path / "out"), "--encoder", str(path))
    assert "choose a depth of 1 to 1, not 3" in line
