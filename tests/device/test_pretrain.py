"""Pretraining at a tiny size on the device: one step against float64, resuming, what is written."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import relative_l2

from app.cli import main
from app.encoder import weights_digest
from app.pretrain.learner import Pretrainer, TokenReader, teacher
from app.pretrain.pretraining import TOKEN_RMS
from app.pretrain.recipe import PretrainRecipe
from app.pretrain.views import inputs
from assets import photos_dir
from engine.checkpoint import load_checkpoint
from engine.gpu import Gpu
from engine.interpret import interpret
from models.dinov3_files import BESIDE, load_encoder
from models.pretraining import TEACHER, pretraining_graph
from tests.command_line import error_line

pytestmark = pytest.mark.gpu

STEPS = 6
TINY = ("--size", "32", "--depth", "1", "--batch", "2", "--prototypes", "16")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def one_device(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "open", lambda *_, **__: gpu)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options: five photographs to learn from, two held out, a tiny network."""
    folder = tmp_path_factory.mktemp("photos")
    for part, count in (("train", 5), ("val", 2)):
        (folder / part).mkdir()
        for path in sorted((photos_dir() / part).iterdir())[:count]:
            (folder / part / path.name).write_bytes(path.read_bytes())
    return ("--data", str(folder / "train"), "--held-out", str(folder / "val"), *TINY)


def result(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(("pretrain", *arguments)) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(values, dict)
    return values


def test_a_step_is_that_of_the_graph(gpu: Gpu, rng: np.random.Generator) -> None:
    """Losses and gradients as in float64; the teacher follows the updated weights."""
    recipe = replace(PretrainRecipe(10, batch=2, size=32, depth=1, prototypes=16), masked=1.0)
    photos = [rng.integers(0, 256, (60, 80, 3), np.uint8) for _ in range(2)]
    batch = inputs([(photo, rng) for photo in photos], 32, 1.0)
    learner = Pretrainer(gpu, recipe)
    learner.session.poison()
    before = learner.tensors()
    rows = [*learner.advance(batch), *learner.wait()]
    after = learner.tensors()

    graph = pretraining_graph(recipe.optimizer, recipe.objective, views=4, depth=1, size=32)
    given = {n: v for n, v in before.items() if not n.startswith("adam_")} | batch
    names = [*graph.gradients]
    losses, *grads = interpret(graph, given, [graph.outputs["losses"], *graph.gradients.values()])
    assert np.allclose(rows, losses, rtol=1e-4)
    for name, want in zip(names, grads, strict=True):
        got = learner.session.read(f"gradient:{name}")
        assert relative_l2(got, want) < 2e-3 or np.abs(want).max() < 1e-6, name
    rate = float(recipe.average_rate(1)[0])
    for name in names:
        moved = before[f"{TEACHER}.{name}"] + rate * (after[name] - before[f"{TEACHER}.{name}"])
        assert np.allclose(after[f"{TEACHER}.{name}"], moved, rtol=1e-6, atol=1e-7), name
    assert np.array_equal(before["head.fc1.weight"], before[f"{TEACHER}.head.fc1.weight"])
    assert not np.array_equal(after["head.fc1.weight"], before["head.fc1.weight"])


def test_the_loss_falls_and_the_tokens_keep_apart(gpu: Gpu, rng: np.random.Generator) -> None:
    recipe = PretrainRecipe(40, batch=2, size=32, depth=1, prototypes=16)
    y, x = np.mgrid[0:60, 0:80] / 12
    photos = [np.stack([np.sin(a * x) + np.sin(b * y)] * 3, -1) for a, b in ((1, 2), (3, 1))]
    shades = [np.uint8(127 + 50 * photo * (1, k, 0.3)) for k, photo in enumerate(photos)]
    learner, losses = Pretrainer(gpu, recipe), []
    for _ in range(30):
        batch = inputs([(photo, rng) for photo in shades], 32, 0.5)
        losses += [*learner.advance(batch)]
    losses += [*learner.wait()]
    assert len(losses) == 30
    first, last = np.mean(losses[:5], axis=0), np.mean(losses[-5:], axis=0)
    assert last[0] < 0.7 * first[0] and last[2] < 0.3 * first[2]
    reader = TokenReader(gpu, 1, 32)
    reader.load(teacher(learner.tensors()))
    tokens = np.stack([reader(np.float32(shade[:32, :32] / 255)) for shade in shades])
    assert tokens.reshape(8, -1).std(axis=0).mean() > 0.02


def test_resumed_learning_is_bit_equal_and_the_file_is_an_encoder(
    gpu: Gpu, few: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    whole, half = tmp_path / "whole.safetensors", tmp_path / "half" / "e.safetensors"
    figures = result(capsys, "--out", str(whole), "--steps", str(STEPS), *few)
    first = ("--out", str(half), "--steps", str(STEPS), "--seconds", "1e-9", "--every", "2")
    assert main(["pretrain", *first, *few, "--evidence", str(tmp_path / "evidence")]) == 0
    out, err = capsys.readouterr()
    stopped = json.loads(out.splitlines()[-1])
    assert stopped["steps"] == 1 and half.read_bytes() != whole.read_bytes()
    words = shlex.split(err.split("stopped after step 1; go on with: ")[1].splitlines()[0])
    assert words[:3] == ["python", "run.py", "pretrain"]
    again = result(capsys, *words[3:])
    same = {key: value for key, value in figures.items() if key not in ("file", "loss")}
    assert {key: again[key] for key in same} == same
    assert half.read_bytes() == whole.read_bytes()
    states = [path.with_name(f"{path.stem}.training.safetensors") for path in (whole, half)]
    assert states[0].read_bytes() == states[1].read_bytes()
    details = json.loads((tmp_path / "evidence" / "evidence.json").read_text())
    assert details["step"] == STEPS and details["encoder"] != details["untrained"]
    assert (tmp_path / "evidence" / "components.png").read_bytes().startswith(b"\x89PNG")

    # The file: Hugging Face's names and shapes; the teacher with longer tokens in half precision.
    file, state = load_checkpoint(whole), load_checkpoint(states[0])
    assert file.metadata["model"] == "DinoVision mini encoder" and file.metadata["depth"] == "1"
    assert file.tensors["embeddings.cls_token"].shape == (1, 1, 384)
    assert file.tensors["embeddings.patch_embeddings.weight"].shape == (384, 3, 16, 16)
    assert {*BESIDE} <= {*file.tensors} and not any("head" in name for name in file.tensors)
    assert whole.stat().st_size < 2.1 * sum(value.size for value in file.tensors.values())
    encoder, exact = load_encoder(whole, 1), teacher(state.tensors)
    assert weights_digest(encoder) == figures["weights_sha256"]
    reader, tokens = TokenReader(gpu, 1, 32), []
    image = np.random.default_rng(0).random((32, 32, 3), np.float32)
    for weights in (exact, encoder):
        reader.load(weights)
        tokens.append(reader(image))
    factor = float(file.metadata["lengthened"])
    shift = factor * tokens[0] - tokens[1]
    assert 0 < relative_l2(shift, np.broadcast_to(shift.mean(axis=0), shift.shape)) < 2e-2
    assert abs(factor - 1) > 0.05 and figures["token_rms"] == pytest.approx(TOKEN_RMS, rel=0.2)


def test_what_cannot_be_resumed(few: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "e.safetensors"
    result(capsys, "--out", str(out), "--steps", "1", *few)
    for file, told in ((out, "is no state of pretraining"), (tmp_path / "x", "cannot read")):
        assert main(["pretrain", "--out", str(out), "--resume", str(file), *few]) == 1
        assert told in error_line(capsys.readouterr().err)
    state = str(tmp_path / "e.training.safetensors")
    assert main(["pretrain", "--out", str(out), "--resume", state, "--steps", "1", *few]) == 1
    assert "has learnt 1 steps: ask for more" in error_line(capsys.readouterr().err)
