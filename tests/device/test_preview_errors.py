"""Errors of a preview that come up after the device was opened: one line, nothing left behind."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from engine.checkpoint import save_checkpoint
from engine.errors import CheckpointError
from engine.gpu import Gpu
from tests.command_line import error_line, fails

pytestmark = pytest.mark.gpu

Capture = pytest.CaptureFixture[str]
SMALL = "preview --headless --eye-size 32 --held-out 0 --job infer --frames 1".split()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def whole_file(path: Path) -> bytes:
    save_checkpoint(path, {"decoder.coarse.weight": np.zeros((4, 4), np.float32)}, {"step": "1"})
    return path.read_bytes()


@pytest.mark.parametrize("option", ["--checkpoint", "--encoder"])
@pytest.mark.parametrize("damage", ["text", "truncated", "flipped", "missing", "folder"])
def test_unreadable_files(
    option: str, damage: str, tmp_path: Path, out: Path, capsys: Capture
) -> None:
    path = tmp_path / "file.safetensors"
    whole = whole_file(path)
    match damage:
        case "text":
            path.write_text("These are not the weights you are looking for.\n")
        case "truncated":
            path.write_bytes(whole[:-5])
        case "flipped":  # the first quote of the header
            path.write_bytes(whole[:9] + b"\xa2" + whole[10:])
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
    line = fails(capsys, 1, *SMALL, "--out", str(out), option, str(path))
    assert str(path) in line
    assert ("cannot read" if damage in ("missing", "folder") else "not a whole") in line
    assert not out.exists()


def test_files_of_other_models(tmp_path: Path, out: Path, capsys: Capture) -> None:
    path = tmp_path / "file.safetensors"
    whole_file(path)
    common = (*SMALL, "--out", str(out))
    line = fails(capsys, 1, *common, "--encoder", str(path))
    assert "not a DINOv3 ViT-S/16 checkpoint" in line
    line = fails(capsys, 1, *common, "--checkpoint", str(path))
    assert "'decoder." in line
    assert not out.exists()


def test_folder_that_cannot_be_written(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for out in (file, file / "below"):
        line = fails(capsys, 1, *SMALL, "--out", str(out))
        assert f"cannot record to {out}" in line and "choose another folder" in line
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "kept"


def test_a_checkpoint_that_cannot_be_written_fails_the_session_but_not_its_records(
    tmp_path: Path, out: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise CheckpointError("cannot write decoder.safetensors: No space left on device")

    monkeypatch.setattr("app.preview.saving.save_checkpoint", full)
    save = tmp_path / "decoder.safetensors"
    assert main([*SMALL, "--out", str(out), "--save", str(save)]) == 1
    assert "No space left" in error_line(capsys.readouterr().err)
    assert not save.exists()
    for name in ("run.json", "summary.json"):
        outcome = json.loads((out / name).read_text())["outcome"]
        assert outcome.startswith("error: cannot write") and "No space left" in outcome
    assert len((out / "frames.jsonl").read_text().splitlines()) == 1


def test_a_fault_in_the_middle_is_recorded(
    out: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Gpu.submit
    calls = 0

    def lose_device(self: Gpu, encoder: object) -> int:
        nonlocal calls
        calls += (out / "run.json").exists()  # the session has begun
        if calls == 12:
            raise OSError(errno.EIO, "the device is lost")
        return real(self, encoder)

    monkeypatch.setattr(Gpu, "submit", lose_device)
    with pytest.raises(OSError, match="the device is lost"):
        main([*SMALL[:-1], "100", "--out", str(out)])
    capsys.readouterr()
    for name in ("run.json", "summary.json"):
        outcome = json.loads((out / name).read_text())["outcome"]
        assert outcome == "error: [Errno 5] the device is lost"
