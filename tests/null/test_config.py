from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.config import PreviewConfig, UsageError


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"chunks": 1, "in_flight": 1, "frames": 1, "eye_size": 16, "hz": 1.0, "held_out": 0},
        {"chunks": 500, "in_flight": 500, "eye_size": 4096, "hz": 1000.0, "held_out": 15},
        {"seconds": 0.001},
        {"seconds": float("inf")},
        {"depth": 1, "input_size": 16},
        {"depth": 12, "input_size": 1024},
        {"fresh": True},
        {"checkpoint": Path("somewhere")},
    ],
)
def test_possible_values_pass(known: dict[str, Any]) -> None:
    PreviewConfig(**known).check()


@pytest.mark.parametrize(
    ("known", "named", "possible"),
    [
        ({"chunks": 0}, "--chunks", "at least 1"),
        ({"chunks": -1}, "--chunks", "at least 1"),
        ({"in_flight": 0}, "--in-flight", "at least 1"),
        ({"frames": 0}, "--frames", "at least 1"),
        ({"hz": 0.5}, "--hz", "1 to 1000"),
        ({"hz": 1001.0}, "--hz", "1 to 1000"),
        ({"hz": float("nan")}, "--hz", "1 to 1000"),
        ({"eye_size": 15}, "--eye-size", "16 to 4096"),
        ({"eye_size": 4097}, "--eye-size", "16 to 4096"),
        ({"seconds": 0.0}, "--seconds", "above 0"),
        ({"seconds": -1.0}, "--seconds", "above 0"),
        ({"seconds": float("nan")}, "--seconds", "above 0"),
        ({"held_out": -1}, "--held-out", "0 to 15"),
        ({"held_out": 16}, "--held-out", "0 to 15"),
        ({"seed": -1}, "--seed", "at least 0"),
        ({"depth": 0}, "--depth", "1 to 12"),
        ({"depth": 13}, "--depth", "1 to 12"),
        ({"input_size": 0}, "--input-size", "a multiple of 16 from 16 to 1024"),
        ({"input_size": 100}, "--input-size", "a multiple of 16 from 16 to 1024"),
        ({"input_size": 1040}, "--input-size", "a multiple of 16 from 16 to 1024"),
        ({"fresh": True, "checkpoint": Path("x")}, "--fresh", "exclude"),
    ],
)
def test_impossible_values_are_named_with_the_possible_ones(
    known: dict[str, Any], named: str, possible: str
) -> None:
    with pytest.raises(UsageError) as caught:
        PreviewConfig(**known).check()
    message = str(caught.value)
    assert named in message and possible in message and "\n" not in message


def test_save_needs_a_place(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    PreviewConfig(save=tmp_path / "new" / "folder" / "decoder.safetensors").check()
    PreviewConfig(save=file).check()
    for path in (file / "below", tmp_path):
        with pytest.raises(UsageError, match=r"--save .* cannot be written"):
            PreviewConfig(save=path).check()
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and file.read_text() == "kept"


def test_records_go_somewhere_when_nothing_is_shown() -> None:
    assert PreviewConfig().out_dir is None
    assert PreviewConfig(headless=True).out_dir == Path("runs/preview")
    for headless in (False, True):
        assert PreviewConfig(headless=headless, out=Path("x")).out_dir == Path("x")


@pytest.mark.parametrize(
    ("known", "limit"),
    [
        ({}, None),
        ({"headless": True}, 20.0),
        ({"headless": True, "frames": 5}, None),
        ({"headless": True, "seconds": 3.0}, 3.0),
        ({"headless": True, "seconds": 3.0, "frames": 5}, 3.0),
        ({"seconds": 3.0}, 3.0),
    ],
)
def test_nothing_runs_for_ever_unseen(known: dict[str, Any], limit: float | None) -> None:
    assert PreviewConfig(**known).run_seconds == limit
