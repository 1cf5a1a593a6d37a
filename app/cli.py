"""The command line: commands, their options, and how errors are told."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tyro
from rich.console import Console
from rich.logging import RichHandler

from app.bench.config import BenchConfig
from app.config import (
    ExplainConfig,
    HeadsetConfig,
    LiveConfig,
    PreviewConfig,
    ReportConfig,
    TuneConfig,
    UsageError,
)
from app.evaluate.config import EvalConfig
from app.generate.config import GenerateConfig
from app.pretrain.config import PretrainConfig
from app.sweep.config import SweepConfig
from app.train.config import TrainConfig
from engine.implementations import Choice

OK, FAILED, USAGE = 0, 1, 2
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class DoctorConfig:
    """Report adapter, features, limits, headset runtime, cameras and versions."""

    gpu: Choice = "auto"
    """WebGPU implementation to try; auto: what DINOVISION_GPU says, else wgpu."""


def preview(config: PreviewConfig) -> int:
    """Run a preview session."""
    from app.xr.open import make_driver

    config.check()
    driver = make_driver("simulated", hz=config.hz, eye_size=config.eye_size)
    return _watch(config, command="preview", driver=driver, window=not config.headless)


def headset(config: HeadsetConfig) -> int:
    """Run a session in a headset."""
    from app.xr.open import make_driver

    config.check()
    driver = make_driver(
        config.driver,
        hz=config.hz,
        eye_size=config.eye_size,
        render_scale=config.render_scale,
        presenter=config.presenter,
        debug=config.debug,
    )
    return _watch(
        config, command="headset", driver=driver, window=config.mirror, wait_s=config.wait
    )


def _watch(config: LiveConfig, **how: Any) -> int:
    from app.preview.live import LiveSession
    from app.progress import Progress

    progress = Progress()
    with contextlib.closing(progress), LiveSession(config, progress, **how) as session:
        summary = session.run()
    progress.say(f"{summary['outcome']}: {_headline(summary)}")
    if session.records.out_dir is not None:
        progress.say(f"records in {session.records.out_dir}")
    return OK


def doctor(config: DoctorConfig) -> int:
    """Report what this machine can do."""
    from app.doctor import run_doctor

    return run_doctor(choice=config.gpu)


def explain(config: ExplainConfig) -> int:
    """Show what the compiler makes of a program."""
    from app.explain import run_explain

    return run_explain(config)


def tune(config: TuneConfig) -> int:
    """Measure the best kernels of this machine."""
    from app.tune import run_tune

    return run_tune(config)


def train(config: TrainConfig) -> int:
    """Teach a decoder from a folder of photographs."""
    from app.train.command import run_train

    return run_train(config)


def pretrain(config: PretrainConfig) -> int:
    """Train an encoder from photographs alone."""
    from app.pretrain.command import run_pretrain

    return run_pretrain(config)


def evaluate(config: EvalConfig) -> int:
    """Measure a decoder on a folder of photographs."""
    from app.evaluate.command import run_eval

    return run_eval(config)


def sweep(config: SweepConfig) -> int:
    """Compare chunk counts, bounds and policies."""
    from app.progress import Progress
    from app.sweep.sweep import Sweep

    progress = Progress()
    with contextlib.closing(progress), Sweep(config, progress) as session:
        summary = session.run()
    progress.say(f"{summary['outcome']}: figures in {config.out}; see run.py report {config.out}")
    return OK if summary["outcome"] == "ok" else FAILED


def bench(config: BenchConfig) -> int:
    """Time the five workloads and judge what they compute."""
    from app.bench.bench import run_bench

    return run_bench(config)


def generate(config: GenerateConfig) -> int:
    """Continue a text with a language model."""
    from app.generate.command import run_generate

    return run_generate(config)


def report(config: ReportConfig) -> int:
    """Tables, plots and a page from a run or a sweep."""
    from app.report.command import run_report

    return run_report(config)


COMMANDS: dict[type, Callable[..., int]] = {
    PreviewConfig: preview,
    HeadsetConfig: headset,
    TrainConfig: train,
    PretrainConfig: pretrain,
    EvalConfig: evaluate,
    SweepConfig: sweep,
    BenchConfig: bench,
    GenerateConfig: generate,
    ReportConfig: report,
    DoctorConfig: doctor,
    ExplainConfig: explain,
    TuneConfig: tune,
}
NAMES: dict[str, Callable[..., object]] = {
    "preview": PreviewConfig,
    "headset": HeadsetConfig,
    "train": TrainConfig,
    "pretrain": PretrainConfig,
    "eval": EvalConfig,
    "sweep": SweepConfig,
    "bench": BenchConfig,
    "generate": GenerateConfig,
    "report": ReportConfig,
    "doctor": DoctorConfig,
    "explain": ExplainConfig,
    "tune": TuneConfig,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; the exit status: 0 ok, 1 failed, 2 wrong usage."""
    parsed = _parse(list(sys.argv[1:] if arguments is None else arguments))
    if isinstance(parsed, int):
        return parsed
    try:
        _log_to_terminal()
        return COMMANDS[type(parsed)](parsed)
    except UsageError as error:
        return _tell(error, parsed, USAGE)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        return _tell(_missing(error), parsed, FAILED)
    except _expected_errors() as error:
        return _tell(error, parsed, FAILED)


def _parse(arguments: list[str]) -> object | int:
    """The chosen command's configuration, or the exit status after help or a usage error."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                NAMES,
                args=arguments,
                prog="run.py",
                description="Neural training on the GPU queue that renders a headset's frames.",
            )
    except SystemExit as stop:
        if stop.code:
            print(f"error: {_one_line(complaint.getvalue())}", file=sys.stderr)
        return int(stop.code or OK)


def _one_line(box: str) -> str:
    """The first message of the parser's box of text, unwrapped."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()[1:]]
    message: list[str] = []
    for line in lines:
        if not line:
            break
        message.append(line)
    return " ".join(message) + "; see --help"


def _expected_errors() -> tuple[type[Exception], ...]:
    from app.camera import CameraError
    from app.preview.target import PreviewError
    from app.telemetry.recorder import TelemetryError
    from app.train.errors import TrainError
    from app.xr.driver import XrError
    from engine.errors import EngineError

    return (CameraError, PreviewError, TelemetryError, TrainError, XrError, EngineError)


def _missing(error: ModuleNotFoundError) -> Exception:
    """One line for a package that is not installed; raises the error again when it is ours."""
    package = (error.name or "").split(".")[0]
    if package in ("", "app", "engine", "models"):
        raise error
    return UsageError(f"the package '{package}' is missing: pip install -e . installs all")


def _tell(error: Exception, config: object, status: int) -> int:
    if getattr(config, "debug", False):
        raise error
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def _headline(summary: dict[str, object]) -> str:
    frame_ms = summary["frame_ms"]
    assert isinstance(frame_ms, dict)
    parts = [
        f"{summary['frames']} frames",
        f"frame p50 {frame_ms['p50']} ms, p99 {frame_ms['p99']} ms",
        f"{summary['missed_per_1000']} of 1000 refreshes missed",
        f"{summary['train_steps']} training steps ({summary['train_steps_per_s']}/s)",
    ]
    if summary["psnr_last_db"] is not None:
        parts.append(f"held-out {summary['psnr_first_db']:.2f} -> {summary['psnr_last_db']:.2f} dB")
    passed = summary["held_out_passed_s"]
    assert isinstance(passed, dict)
    if marks := [f"{db} dB after {seconds:.1f} s" for db, seconds in passed.items()][-4:]:
        parts.append(", ".join(marks))
    return ", ".join(parts)


def _log_to_terminal() -> None:
    """Library messages to stderr, from the level that DINOVISION_LOG names."""
    level = os.environ.get("DINOVISION_LOG", "WARNING").upper()
    if level not in LEVELS:
        raise UsageError(f"DINOVISION_LOG must be one of {', '.join(LEVELS)}, not '{level}'")
    console = Console(stderr=True)
    handler = RichHandler(console=console, show_time=False, show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
