"""The `eval` command."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console

from app.camera.images import centre_square, read_image
from app.camera.source import CameraError
from app.camera.tree import find_images
from app.config import UsageError
from app.contracts import open_for
from app.encoder import Encoder, open_encoder
from app.evaluate.config import EvalConfig
from app.evaluate.contact_sheet import BRIGHTEST, Example, contact_sheet
from app.evaluate.metrics import Quality, measure, summarize
from app.evaluate.painter import Painter
from app.pixels import to_unit
from app.prefetch import Prefetch, usual_workers
from app.progress import Progress
from app.tables import print_table, say, to_reader
from assets import decoder_file
from engine.atomic import write_atomic
from engine.checkpoint import Checkpoint, load_checkpoint
from engine.errors import CheckpointError, EngineError
from models.dinov3 import DEFAULT_DEPTH
from models.preprocess import preprocess
from models.vision import IMAGE

LISTED = 40
"""Images in the table; of more, only the worst are listed."""
WORST = 10
SHOWN = 12
"""Images on the contact sheet, evenly spaced by name: no result decides who is shown."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """One image, measured; `pictures` only for those on the contact sheet."""

    name: str
    quality: Quality
    pictures: tuple[np.ndarray, np.ndarray] | None


def run_eval(config: EvalConfig, console: Console | None = None) -> int:
    """Measure a decoder on photographs; the figures are JSON on the last line. Returns 0.

    Raises UsageError, CameraError, CheckpointError or GpuError.
    """
    config.check_usage()
    console = console or Console()
    cv2.setNumThreads(1)
    file = load_checkpoint(config.checkpoint or _shipped())
    depth, size = _number(file, "depth", DEFAULT_DEPTH), _number(file, "size", IMAGE)
    encoder = open_encoder(config.encoder, depth)
    if not encoder.trained(file.metadata):
        theirs = file.metadata.get("encoder", "another encoder")
        log.warning("%s was trained on '%s', not on '%s'", file.path, theirs, encoder.note)
    paths = find_images(config.data)
    progress = Progress()
    gpu = open_for(config.gpu, config.contract, progress.say)
    painter = Painter(gpu, encoder, size, config.storage)
    painter.load(file.pick(painter.shapes))
    results: list[Result] = []
    with contextlib.closing(progress):
        for result in _measured(painter, config, paths, size):
            results.append(result)
            progress.update(lambda: f"{len(results)} of {len(paths)} images measured")
    if not results:
        raise CameraError(f"none of the {len(paths)} images in '{config.data}' can be decoded")
    summary: dict[str, object] = {
        **summarize([result.quality for result in results]),
        "skipped": len(paths) - len(results),
        "checkpoint": str(file.path),
        "step": file.metadata.get("step"),
        "encoder": encoder.note,
        "size": size,
    }
    if config.out is not None:
        _write(config.out, results, summary, encoder)
    with to_reader(console):
        _print(console, results)
        say(console, json.dumps(summary))
    return 0


def _shipped() -> Path:
    path = decoder_file()
    if not path.exists():
        raise UsageError(
            "no trained decoder ships with this version: name one with --checkpoint, "
            "as run.py train writes it"
        )
    return path


def _number(file: Checkpoint, key: str, usual: int) -> int:
    text = file.metadata.get(key, str(usual))
    if not text.isdecimal():
        raise CheckpointError(f"{file.path}: its {key} cannot be read: '{text}'")
    return int(text)


def _measured(
    painter: Painter, config: EvalConfig, paths: Sequence[Path], size: int
) -> Iterator[Result]:
    """Decode, paint and compare every readable image, in order; threads decode and compare."""

    def load(path: Path) -> np.ndarray | None:
        try:
            image = read_image(path)
        except CameraError as error:
            log.warning("skipped: %s", error)
            return None
        return preprocess(image, size) if config.whole else to_unit(centre_square(image, size))

    shown = {paths[k * len(paths) // SHOWN] for k in range(SHOWN)}
    pending: deque[Future[Result]] = deque()

    def compare(path: Path, original: np.ndarray, painted: np.ndarray) -> Result:
        name = path.relative_to(config.data).as_posix()
        pictures = (original, painted) if path in shown else None
        return Result(name, measure(painted, original), pictures)

    workers = usual_workers()
    with Prefetch(load, paths, workers) as images, ThreadPoolExecutor(workers) as pool:
        for path, original in zip(paths, images, strict=True):
            if original is not None:
                pending.append(pool.submit(compare, path, original, painter.paint(original)))
            while len(pending) > 2 * workers or (pending and pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _print(console: Console, results: Sequence[Result]) -> None:
    listed, title = list(results), ""
    if len(results) > LISTED:
        listed = sorted(results, key=lambda result: result.quality.psnr_db)[:WORST]
        title = f"the {WORST} worst of {len(results)}:"
    cells = [
        (r.name, f"{r.quality.psnr_db:.2f}", f"{r.quality.ssim:.4f}", f"{r.quality.mae:.4f}")
        for r in listed
    ]
    print_table(console, ("image", ">PSNR dB", ">SSIM", ">MAE"), cells, title)


def _write(
    folder: Path, results: Sequence[Result], summary: dict[str, object], encoder: Encoder
) -> None:
    """eval.json, with the figures of every image, and contact_sheet.png."""
    each = [
        {"file": r.name, "mse": r.quality.mse, "mae": r.quality.mae, "ssim": r.quality.ssim}
        for r in results
    ]
    examples = [Example(r.name, *r.pictures, r.quality) for r in results if r.pictures is not None]
    whole = summarize([result.quality for result in results])
    title = (
        f"{whole['images']} images: PSNR {whole['psnr_global_db']:.2f} dB, "
        f"medians {whole['psnr_median_db']:.2f} dB, SSIM {whole['ssim_median']:.4f}, "
        f"MAE {whole['mae_median']:.4f}"
    )
    subtitle = (
        f"Each: input, output, error (black 0, white from {BRIGHTEST:g}). "
        f"{Path(str(summary['checkpoint'])).name}, step {summary['step']}; {encoder.note}"
    )
    details = {**summary, "encoder_sha256": encoder.digest, "each": each}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "eval.json", json.dumps(details, indent=2) + "\n")
        write_atomic(folder / "contact_sheet.png", contact_sheet(examples, title, subtitle))
    except OSError as error:
        raise EngineError(f"cannot write to {folder}: {error.strerror or error}") from error
