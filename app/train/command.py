"""The `train` command."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shlex
from pathlib import Path

import cv2
from rich.console import Console

from app.contracts import open_for
from app.digests import file_sha256
from app.encoder import Encoder, open_encoder
from app.evaluate.painter import Painter
from app.interrupt import Interrupt
from app.progress import Progress
from app.start import has_state, steps_learnt
from app.tables import say
from app.train.config import TrainConfig
from app.train.errors import require_steps_left
from app.train.held_out import HeldOutPhotos
from app.train.learner import Learner
from app.train.photo_set import PhotoSet
from app.train.recipe import Recipe, choose_recipe
from app.train.training import Kept, Training
from assets import photos_dir
from engine.checkpoint import Checkpoint, load_checkpoint

log = logging.getLogger(__name__)


def run_train(config: TrainConfig, console: Console | None = None) -> int:
    """Train, and print the result as JSON on the last line; 0, also after Ctrl-C.

    Raises UsageError, CameraError, CheckpointError, GpuError or TrainError.
    """
    config.check_usage()
    console = console or Console()
    # Photographs are prepared by threads of our own, as many as are good.
    cv2.setNumThreads(1)
    progress = Progress()
    with contextlib.closing(progress):
        resumed = load_checkpoint(config.resume) if config.resume else None
        recipe = choose_recipe(config.recipe_options(), config.steps, resumed)
        step = steps_learnt(resumed) if resumed else 0
        require_steps_left(config.resume, step, config.steps)
        encoder = open_encoder(config.encoder, recipe.depth)
        held_out = HeldOutPhotos(config.held_out or photos_dir() / "val", recipe.size)
        photos = held_out.others(config.data, recipe.size, progress)
        metadata = _metadata(recipe, encoder, photos)
        if resumed:
            _warn_of_differences(resumed, encoder, metadata)
        gpu = open_for(config.gpu, config.contract, progress.say)
        learner = Learner(gpu, recipe, encoder)
        if resumed:
            _resume(learner, resumed, step)
        painter = Painter(gpu, encoder, recipe.size)
        progress.say(f"{encoder.note}; {gpu.name}")
        progress.say(_plan(recipe, learner.step, config.steps))
        training = Training(
            learner,
            recipe,
            photos,
            lambda decoder: held_out.psnr_db(painter, decoder),
            config.out,
            metadata,
            progress,
            weights=config.weights,
        )
        with Interrupt() as interrupt:
            kept = training.run(config.steps, config.every, lambda: interrupt.requested)
        if kept.step < config.steps:
            progress.say(f"interrupted after step {kept.step}; go on with: {_again(config)}")
    say(console, json.dumps(_result(config.out, kept)))
    return 0


def _metadata(recipe: Recipe, encoder: Encoder, photos: PhotoSet) -> dict[str, str]:
    """What every checkpoint says of itself; nothing that differs between equal runs."""
    return {
        "model": "dinovision-decoder",
        "encoder": encoder.note,
        "encoder_sha256": encoder.digest,
        "depth": str(recipe.depth),
        "size": str(recipe.size),
        "seed": str(recipe.seed),
        "data": f"{len(photos)} photographs",
        "data_sha256": photos.fingerprint,
        **recipe.metadata(),
    }


def _resume(learner: Learner, file: Checkpoint, step: int) -> None:
    """Go on with weights and moments, or from step 0 with weights alone."""
    shapes = learner.shapes("parameter")
    if step:
        shapes |= learner.shapes("state")
    learner.resume(file.pick(shapes), step)


def _warn_of_differences(file: Checkpoint, encoder: Encoder, ours: dict[str, str]) -> None:
    """What is not as it was: the run goes on, but not as one without a break would."""
    if not has_state(file):
        log.warning("%s has no optimiser state: its weights are the start of a new run", file.path)
    words = {"data_sha256": "other photographs", "recipe": "other options"}
    changed = [
        what for key, what in words.items() if file.metadata.get(key, ours[key]) != ours[key]
    ]
    if not encoder.trained(file.metadata):
        changed.append("another encoder")
    if changed:
        log.warning("%s was trained with %s", file.path, " and ".join(changed))


def _plan(recipe: Recipe, done: int, steps: int) -> str:
    return (
        f"steps {done + 1} to {steps}, {recipe.batch} samples of {recipe.size} x {recipe.size} "
        f"pixels each, rate {recipe.rate:g}, seed {recipe.seed}"
    )


def _again(config: TrainConfig) -> str:
    """The command that goes on where this run stopped; the file knows the other options."""
    words = ["python", "run.py", "train", "--data", str(config.data), "--steps", str(config.steps)]
    words += ["--out", str(config.out), "--resume", str(config.out), "--every", str(config.every)]
    for option in ("weights", "encoder", "held_out"):
        path = getattr(config, option)
        words += [] if path is None else [f"--{option.replace('_', '-')}", str(path)]
    return shlex.join(words)


def _result(file: Path, kept: Kept) -> dict[str, object]:
    return {
        "steps": kept.step,
        "loss": _finite(kept.loss, 7),
        "psnr_held_out_db": _finite(kept.held_out_db, 3),
        "psnr_held_out_median_db": _finite(kept.held_out_median_db, 3),
        "file": str(file),
        "sha256": file_sha256(file),
        "weights_sha256": kept.weights_sha256,
    }


def _finite(value: float | None, digits: int) -> float | None:
    """A figure for JSON, which has no infinity."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
