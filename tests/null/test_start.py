"""Which encoder and which decoder a session starts from."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from encoder_files import hugging_face, save
from vit import random_weights

from app.config import UsageError
from app.encoder import MINI_ENCODER, RANDOM_ENCODER, Encoder, open_encoder
from app.start import ADAPTING, LEARNING, Start, choose_start
from engine.checkpoint import save_checkpoint
from engine.errors import CheckpointError

WEIGHTS = {"decoder.a": np.arange(3, dtype=np.float32)}
STATE = {"adam_m.decoder.a": np.ones(3, np.float32), "adam_v.decoder.a": np.ones(3, np.float32)}


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where shipped files are looked for; none is there yet."""
    monkeypatch.setattr("assets.encoder_file", lambda: tmp_path / "encoder.safetensors")
    monkeypatch.setattr("assets.decoder_file", lambda: tmp_path / "decoder.safetensors")
    return tmp_path


def ship_encoder(folder: Path, seed: int) -> None:
    weights = random_weights(3, np.random.default_rng(seed))
    save(hugging_face(weights), folder / "encoder.safetensors", "F16")


def ship_decoder(folder: Path, encoder: Encoder) -> None:
    metadata = {"encoder_sha256": encoder.digest, "encoder": "x", "depth": str(encoder.depth)}
    save_checkpoint(folder / "decoder.safetensors", WEIGHTS | STATE, {**metadata, "step": "9"})


def test_the_encoder_is_the_shipped_one_unless_another_is_named(shipped: Path) -> None:
    assert open_encoder(None, 4).note == RANDOM_ENCODER and open_encoder(None, 1).is_random
    ship_encoder(shipped, 1)
    default = open_encoder(None, 3)
    assert default.note == MINI_ENCODER and not default.is_random
    named = open_encoder(str(shipped / "encoder.safetensors"), 3)
    assert named.note == "encoder: encoder.safetensors" and named.digest == default.digest
    assert open_encoder("random", 3).digest != default.digest
    assert open_encoder("random", 12).note == RANDOM_ENCODER
    with pytest.raises(UsageError, match="the mini encoder has 3 layers, not 4: take fewer"):
        open_encoder(None, 4)
    with pytest.raises(CheckpointError, match="cannot read"):
        open_encoder("nowhere", 3)


def test_the_shipped_decoder_is_taken_with_the_encoder_it_was_trained_from(shipped: Path) -> None:
    ship_encoder(shipped, 1)
    mini, shallow, other = open_encoder(None, 3), open_encoder(None, 2), open_encoder("random", 3)
    assert choose_start(None, mini, shipped=True) == Start("fresh decoder", LEARNING)
    ship_decoder(shipped, mini)
    start = choose_start(None, mini, shipped=True)
    assert (start.note, start.step, start.optimizer) == ("trained decoder", 0, ADAPTING)
    # Its weights only: moments at the end of training say nothing of what comes now.
    assert start.file is not None and start.file.tensors.keys() == WEIGHTS.keys()
    assert choose_start(None, mini, shipped=False).file is None
    for encoder in (shallow, other):
        start = choose_start(None, encoder, shipped=True)
        assert start.file is None and start.optimizer == LEARNING
        assert "the shipped one was trained from another encoder" in start.note


def test_a_checkpoint_goes_on_as_it_was_learning(
    shipped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder, path = open_encoder("random", 1), shipped / "mine.safetensors"
    ship_decoder(shipped, encoder)
    common = {"encoder": "renamed", "encoder_sha256": encoder.digest, "depth": "1", "step": "7"}
    for optimizer, tensors, step, expected in (
        (repr(LEARNING), WEIGHTS | STATE, 7, LEARNING),
        (repr(ADAPTING), WEIGHTS | STATE, 7, ADAPTING),
        ("that of train", WEIGHTS | STATE, 7, ADAPTING),
        ("that of train", WEIGHTS, 0, ADAPTING),
    ):
        save_checkpoint(path, tensors, {**common, "optimizer": optimizer})
        start = choose_start(path, encoder, shipped=True)
        assert (start.note, start.step) == ("decoder: mine.safetensors", step)
        assert start.optimizer is expected
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        choose_start(path, open_encoder("random", 2), shipped=True)
    (record,) = caplog.records
    assert "was trained on 'renamed, depth 1', not on 'random encoder" in record.getMessage()
