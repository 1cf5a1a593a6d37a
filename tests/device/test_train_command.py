"""The train and eval commands at a tiny size: what is learnt, kept, resumed and measured."""

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.encoder import open_encoder
from app.train.learner import Learner, Pace
from app.train.photo_set import PhotoSet
from app.train.recipe import Recipe
from assets import photos_dir
from engine.checkpoint import load_checkpoint, save_checkpoint
from engine.gpu import Gpu
from tests.command_line import error_line

pytestmark = pytest.mark.gpu

STEPS = 8
TINY = ("--data", str(photos_dir()), "--size", "32", "--depth", "1", "--batch", "3")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def one_device(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "open", lambda *_, **__: gpu)


def result(capsys: Capture, *arguments: str) -> dict[str, Any]:
    """The JSON that a command which succeeds prints on its last line."""
    assert main(arguments) == 0
    out = capsys.readouterr().out
    values = json.loads(out.splitlines()[-1])
    assert isinstance(values, dict)
    return values


@pytest.fixture(scope="module")
def whole(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run without a break."""
    file = tmp_path_factory.mktemp("train") / "whole.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gpu, "open", lambda *_, **__: gpu)
        assert main(["train", *TINY, "--steps", str(STEPS), "--out", str(file)]) == 0
    return file


def test_resumed_learning_is_bit_equal(whole: Path, tmp_path: Path, capsys: Capture) -> None:
    """Other options than data, steps and the file are not repeated: the checkpoint has them."""
    half, rest = tmp_path / "half.safetensors", tmp_path / "new" / "rest.safetensors"
    begun = ("--steps", str(STEPS // 2), "--decay-steps", str(STEPS), "--out", str(half))
    assert result(capsys, "train", *TINY, *begun)["steps"] == STEPS // 2
    assert half.read_bytes() != whole.read_bytes()
    gone_on = ("--steps", str(STEPS), "--resume", str(half), "--out", str(rest), "--every", "3")
    figures = result(capsys, "train", "--data", str(photos_dir()), *gone_on)
    assert figures["steps"] == STEPS and figures["file"] == str(rest)
    assert rest.read_bytes() == whole.read_bytes()


def test_the_seed_decides(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The same file from the same seed, whatever the threads do; another from another seed."""
    monkeypatch.setattr("app.prefetch.usual_workers", lambda: 5)
    digests = []
    for seed in ("0", "1"):
        file = tmp_path / f"{seed}.safetensors"
        run = ("--steps", str(STEPS), "--seed", seed, "--out", str(file))
        digests.append(result(capsys, "train", *TINY, *run)["weights_sha256"])
    assert (tmp_path / "0.safetensors").read_bytes() == whole.read_bytes()
    assert digests[0] != digests[1]


def test_interrupted_training_says_how_to_go_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file, weights = (tmp_path / f"{name} with space.safetensors" for name in ("all", "weights"))
    run = ("train", *TINY, "--steps", str(STEPS), "--out", str(file), "--weights", str(weights))
    advance = Learner.advance

    def interrupted(learner: Learner, images: np.ndarray) -> list[float]:
        if learner.step == 2:
            signal.raise_signal(signal.SIGINT)
        return advance(learner, images)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "advance", interrupted)
        assert main([*run]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["steps"] == 3
    assert load_checkpoint(file).metadata["step"] == "3"
    command = shlex.split(err.split("interrupted after step 3; go on with: ")[1])
    assert command[:2] == ["python", "run.py"]
    assert result(capsys, *command[2:])["steps"] == STEPS
    assert file.read_bytes() == whole.read_bytes()
    learnt, alone = load_checkpoint(file), load_checkpoint(weights)
    assert alone.metadata == learnt.metadata
    assert {*alone.tensors} == {name for name in learnt.tensors if name.startswith("decoder.")}
    assert all(np.array_equal(learnt.tensors[n], value) for n, value in alone.tensors.items())


def test_a_loss_that_is_not_finite_keeps_the_last_good_file(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file = tmp_path / "kept.safetensors"
    batch = PhotoSet.batch

    def damaged(photos: PhotoSet, seed: int, first: int, count: int) -> np.ndarray:
        images = batch(photos, seed, first, count)
        return images if first < 4 * count else images * np.float32(np.nan)

    run = ("train", *TINY, "--steps", str(STEPS), "--out", str(file), "--every", "2")
    with monkeypatch.context() as patch:
        patch.setattr(PhotoSet, "batch", damaged)
        assert main([*run]) == 1
    line = error_line(capsys.readouterr().err)
    assert f"the loss of step 5 is not finite; {file} holds step 4: take a --rate below" in line
    kept = load_checkpoint(file)
    assert kept.metadata["step"] == "4"
    assert all(np.isfinite(value).all() for value in kept.tensors.values())

    before = file.read_bytes()
    assert main([*run, "--resume", str(file), "--rate", "1e30"]) == 1
    line = error_line(capsys.readouterr().err)
    assert "is not finite" in line and f"{file} is as it was" in line
    assert file.read_bytes() == before


def test_what_a_checkpoint_says_of_itself(whole: Path) -> None:
    metadata = load_checkpoint(whole).metadata
    wanted = {"step": str(STEPS), "seed": "0", "depth": "1", "size": "32"}
    assert wanted.items() <= metadata.items()
    assert metadata["data"] == "155 photographs", "the 15 held out are in the folder too"
    assert len(metadata["data_sha256"]) == len(metadata["encoder_sha256"]) == 64
    assert json.loads(metadata["recipe"])["batch"] == 3
    assert not any("/" in text for text in metadata.values()), "paths would differ between machines"


def test_eval_agrees_with_training_and_writes_its_records(
    whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    data, out = tmp_path / "val", tmp_path / "out"
    data.mkdir()
    for path in sorted((photos_dir() / "val").iterdir()):
        (data / path.name).write_bytes(path.read_bytes())
    (data / "bad.jpg").write_bytes(b"not an image")
    first = ("--checkpoint", str(whole), "--data", str(data), "--out", str(out))
    figures = result(capsys, "eval", *first)
    assert figures["images"] == 15 and figures["skipped"] == 1
    assert 10 < figures["psnr_global_db"] < 20 and 10 < figures["psnr_median_db"] < 20
    assert 0 < figures["ssim_median"] < 0.6 and 0 < figures["mae_median"] < 0.3

    # Training measured the same photographs with the same weights.
    again = tmp_path / "again.safetensors"
    gone_on = ("--data", str(data), "--held-out", str(photos_dir() / "train"))
    more = ("--steps", str(STEPS + 1), "--resume", str(whole), "--out", str(again), *gone_on)
    trained = result(capsys, "train", *more)
    measured = result(capsys, "eval", "--checkpoint", str(again), "--data", str(data), "--whole")
    assert trained["steps"] == int(measured["step"]) == STEPS + 1
    assert measured["psnr_global_db"] != figures["psnr_global_db"]

    details = json.loads((out / "eval.json").read_text())
    assert len(details["each"]) == 15 and details["each"][0]["file"] < details["each"][1]["file"]
    mse = np.mean([each["mse"] for each in details["each"]])
    assert figures["psnr_global_db"] == pytest.approx(-10 * np.log10(mse), abs=1e-4)
    assert (out / "contact_sheet.png").read_bytes().startswith(b"\x89PNG")


def test_held_out_figures_are_those_of_eval(whole: Path, tmp_path: Path, capsys: Capture) -> None:
    run = ("--steps", str(STEPS), "--out", str(tmp_path / "x.safetensors"))
    trained = result(capsys, "train", *TINY, *run)
    val = ("--data", str(photos_dir() / "val"))
    measured = result(capsys, "eval", "--checkpoint", str(whole), *val)
    assert trained["psnr_held_out_db"] == pytest.approx(measured["psnr_global_db"], abs=1e-3)
    median = measured["psnr_median_db"]
    assert trained["psnr_held_out_median_db"] == pytest.approx(median, abs=1e-3)


def test_weights_alone_begin_a_new_run(
    whole: Path, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    file = load_checkpoint(whole)
    weights = {name: value for name, value in file.tensors.items() if name.startswith("decoder.")}
    bare, out = tmp_path / "bare.safetensors", tmp_path / "out.safetensors"
    save_checkpoint(bare, weights, {"depth": "1", "encoder": "encoder: other.safetensors"})
    run = ("--steps", "1", "--resume", str(bare), "--out", str(out), "--rate", "1e-30")
    assert result(capsys, "train", *TINY, *run)["steps"] == 1
    learnt = load_checkpoint(out)
    assert all(np.array_equal(learnt.tensors[name], value) for name, value in weights.items())
    messages = [record.getMessage() for record in caplog.records]
    assert any("no optimiser state" in message for message in messages)
    assert any("was trained with another encoder" in message for message in messages)


def test_steps_already_learnt_are_one_clear_line(whole: Path, capsys: Capture) -> None:
    run = ("--steps", str(STEPS), "--resume", str(whole), "--out", str(whole))
    assert main(["train", *TINY, *run]) == 1
    assert f"has learnt {STEPS} steps: ask for more" in error_line(capsys.readouterr().err)


def test_a_batch_beyond_the_device_is_one_clear_line(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "x.safetensors"
    big = ("--steps", "1", "--batch", "4096", "--size", "1024", "--out", str(out))
    assert main(["train", "--data", str(photos_dir()), *big]) == 1
    line = error_line(capsys.readouterr().err)
    assert "4096 samples of 1024 x 1024 pixels" in line and "take a smaller --batch" in line
    assert not out.exists()


@pytest.mark.parametrize("pace", [Pace(2, 3), Pace(3, 4)])
def test_losses_arrive_in_order_however_far_the_host_runs_ahead(
    gpu: Gpu, pace: Pace, rng: np.random.Generator
) -> None:
    recipe, encoder = Recipe(20, batch=3, size=32, depth=1), open_encoder("random", 1)
    images = rng.random((11, 3, 32, 32, 3), np.float32)
    results = []
    for how in (Pace(1, 1), pace):
        learner = Learner(gpu, recipe, encoder, how)
        losses, created = [], gpu.objects_created
        for batch in images:
            losses += learner.advance(batch)
        assert gpu.objects_created == created
        losses += learner.drain()
        results.append((losses, learner.tensors()))
    (losses, tensors), (others, others_tensors) = results
    assert len(set(losses)) == len(images) and losses == others
    assert all(np.array_equal(others_tensors[name], value) for name, value in tensors.items())
