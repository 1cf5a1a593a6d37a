"""The `pretrain` command."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console

from app.camera.images import centre_square
from app.digests import file_sha256
from app.interrupt import Interrupt
from app.pixels import to_unit
from app.pretrain.config import PretrainConfig
from app.pretrain.evidence import MARGIN
from app.pretrain.learner import Pretrainer, TokenReader, teacher
from app.pretrain.pretraining import Evidence, Files, Kept, Pretraining
from app.pretrain.recipe import PretrainRecipe, choose_recipe
from app.progress import Progress
from app.tables import say
from app.train.errors import require_steps_left
from app.train.held_out import HeldOutPhotos
from app.train.photo_set import PhotoSet
from assets import photos_dir
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.errors import CheckpointError
from engine.gpu import Gpu

FITTED = 48
"""Photographs, evenly spaced, that the evidence's linear map from tokens to pixels is fitted to."""


def run_pretrain(config: PretrainConfig, console: Console | None = None) -> int:
    """Train an encoder, and print the result as JSON on the last line; 0, also after Ctrl-C.

    Raises UsageError, CameraError, CheckpointError, GpuError or TrainError.
    """
    config.check_usage()
    console = console or Console()
    # Views are prepared by threads of our own, as many as are good.
    cv2.setNumThreads(1)
    progress = Progress()
    with contextlib.closing(progress):
        resumed = load_checkpoint(config.resume) if config.resume else None
        recipe = choose_recipe(config.recipe_options(), config.steps, resumed)
        step = _step(resumed) if resumed else 0
        require_steps_left(config.resume, step, config.steps)
        held_out = HeldOutPhotos(config.held_out or photos_dir() / "val", recipe.size + MARGIN)
        photos = held_out.others(config.data or photos_dir() / "train", recipe.size, progress)
        gpu = Gpu.open(config.gpu)
        learner = Pretrainer(gpu, recipe)
        evidence = Evidence(
            TokenReader(gpu, recipe.depth, recipe.size),
            [to_unit(image) for image in held_out.images],
            _fitted(photos, recipe.size),
        )
        baseline = evidence.figures(teacher(learner.tensors()))
        if resumed:
            shapes = learner.shapes("parameter") | learner.shapes("state")
            learner.resume(resumed.pick(shapes), step)
        progress.say(f"{gpu.name}; {_plan(recipe, step, config.steps)}")
        training = Pretraining(
            learner,
            photos,
            evidence,
            baseline,
            Files(config.out, config.state_file, config.evidence),
            _metadata(recipe, photos),
            progress,
        )
        with Interrupt() as interrupt:
            over = _timer(config.seconds)
            kept = training.run(config.steps, config.every, lambda: interrupt.requested or over())
        if kept.step < config.steps:
            progress.say(f"stopped after step {kept.step}; go on with: {_again(config)}")
    say(console, json.dumps(_result(config.out, kept)))
    return 0


def _fitted(photos: PhotoSet, size: int) -> list[np.ndarray]:
    places = range(0, len(photos), -(-len(photos) // FITTED))
    return [to_unit(centre_square(photos.image(place), size)) for place in places]


def _metadata(recipe: PretrainRecipe, photos: PhotoSet) -> dict[str, str]:
    """What every file says of itself; nothing that differs between equal runs."""
    return {
        "model": "DinoVision mini encoder",
        "architecture": f"DINOv3 ViT-S/16, {recipe.depth} layers",
        "depth": str(recipe.depth),
        "size": str(recipe.size),
        "seed": str(recipe.seed),
        "data": f"{len(photos)} photographs",
        "data_sha256": photos.fingerprint,
        **recipe.metadata(),
    }


def _step(file: Checkpoint) -> int:
    """Steps that a state of training has learnt."""
    text = file.metadata.get("step", "")
    if file.metadata.get("model") != "pretraining" or not text.isdecimal():
        raise CheckpointError(
            f"{file.path} is no state of pretraining: name what --checkpoint named"
        )
    return int(text)


def _timer(seconds: float | None) -> Callable[[], bool]:
    """Whether so much time has passed since now."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _plan(recipe: PretrainRecipe, done: int, steps: int) -> str:
    return (
        f"steps {done + 1} to {steps}, two views of {recipe.size} x {recipe.size} pixels of "
        f"{recipe.batch} photographs each, rate {recipe.rate:g}, seed {recipe.seed}"
    )


def _again(config: PretrainConfig) -> str:
    """The command that goes on where this run stopped; the file knows the other options."""
    words = ["python", "run.py", "pretrain", "--out", str(config.out)]
    words += ["--steps", str(config.steps), "--every", str(config.every)]
    words += ["--resume", str(config.state_file), "--checkpoint", str(config.state_file)]
    for option in ("data", "held_out", "evidence"):
        path = getattr(config, option)
        words += [] if path is None else [f"--{option.replace('_', '-')}", str(path)]
    return shlex.join(words)


def _result(file: Path, kept: Kept) -> dict[str, object]:
    return {
        "steps": kept.step,
        "loss": None if kept.losses is None else round(kept.losses[0], 5),
        **asdict(kept.figures),
        "file": str(file),
        "sha256": file_sha256(file),
        "weights_sha256": kept.weights_sha256,
    }
