"""What decides a training run: options, schedule, what a resumed checkpoint says, usage errors."""

from pathlib import Path

import pytest

from app.config import UsageError
from app.train.config import TrainConfig
from app.train.recipe import FINAL, KEY, Recipe, choose_recipe
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointError
from tests.command_line import fails

NOTHING: dict[str, int | float | None] = dict.fromkeys(("seed", "batch", "rate", "decay_steps"))


def resumed(**metadata: str) -> Checkpoint:
    return Checkpoint(Path("c.safetensors"), {}, metadata)


def test_a_fresh_run_decays_until_its_last_step() -> None:
    recipe = choose_recipe({**NOTHING, "seed": 4, "rate": 1e-2}, 500, None)
    assert recipe == Recipe(500, seed=4, rate=1e-2)
    factor = recipe.optimizer.schedule
    assert factor(1) == pytest.approx(1 / 50) and factor(50) == 1
    assert factor(500) == pytest.approx(FINAL) == factor(10_000)
    assert choose_recipe(NOTHING, 1, None).optimizer.schedule(1) == pytest.approx(FINAL)


def test_a_resumed_run_keeps_its_options_unless_others_are_given() -> None:
    first = Recipe(1000, seed=3, batch=2, rate=0.5, size=32, depth=1)
    file = resumed(**first.metadata())
    assert choose_recipe(NOTHING, 1000, file) == first
    assert choose_recipe(NOTHING, 600, file) == first
    longer = choose_recipe({**NOTHING, "batch": 4}, 3000, file)
    assert longer == Recipe(3000, seed=3, batch=4, rate=0.5, size=32, depth=1)
    assert choose_recipe({**NOTHING, "decay_steps": 50}, 3000, file).decay_steps == 50


def test_a_preview_checkpoint_has_no_recipe_but_a_depth() -> None:
    assert choose_recipe(NOTHING, 70, resumed(depth="2")) == Recipe(70, depth=2)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"seed": 1}', "not json"])
def test_a_recipe_that_cannot_be_read_is_one_clear_line(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"c\.safetensors: its recipe cannot be read"):
        choose_recipe(NOTHING, 70, resumed(**{KEY: text}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--steps 0", "--steps must be at least 1, not 0"),
        ("--every 0", "--every must be at least 1, not 0"),
        ("--decay-steps 0", "--decay-steps must be at least 1, not 0"),
        ("--batch 0", "--batch must be 1 to 4096, not 0"),
        ("--rate 0", "--rate must be above 0"),
        ("--rate nan", "--rate must be above 0"),
        ("--rate inf", "--rate must be above 0"),
        ("--seed -1", "--seed must be at least 0, not -1"),
        ("--size 100", "--size must be a multiple of 16"),
        ("--size 0", "--size must be a multiple of 16"),
        ("--depth 13", "--depth must be 1 to 12, not 13"),
        ("--out .", "--out . cannot be written"),
    ],
)
def test_wrong_usage(
    options: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"--data": str(tmp_path), "--steps": "5", "--out": str(tmp_path / "c.safetensors")}
    option, value = options.split()
    arguments = [word for pair in {**words, option: value}.items() for word in pair]
    assert named in fails(capsys, 2, "train", *arguments)


def test_options_that_learning_depends_on_reach_the_recipe() -> None:
    config = TrainConfig(Path("d"), 5, Path("c.safetensors"), seed=1, batch=2, rate=0.1, size=32)
    config.check_usage()
    assert choose_recipe(config.recipe_options(), 5, None) == Recipe(
        5, seed=1, batch=2, rate=0.1, size=32
    )
    with pytest.raises(UsageError):
        TrainConfig(Path("d"), 0, Path("c")).check_usage()


@pytest.mark.parametrize(
    ("command", "missing"), [("train --steps 3 --out x", "--data"), ("eval", "--data")]
)
def test_what_must_be_given(command: str, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert missing in fails(capsys, 2, *command.split())
