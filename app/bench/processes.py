"""Runs jobs, each in a fresh process whose caches hold nothing, or what the last one left."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from app.bench.record import Job, RunRecord, load_record, save
from app.bench.runner import JOB, RECORD
from app.revision import ROOT

LIMIT_S = 1800.0
"""A process that takes longer hangs."""
CACHES = {
    "shaders": ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"),
    "inductor": ("TORCHINDUCTOR_CACHE_DIR",),
    "triton": ("TRITON_CACHE_DIR",),
}
"""Folders, and the variables that make drivers and frameworks use them."""


def known(runner: str) -> bool:
    """Whether there is a runner of that name."""
    if not runner.isidentifier():
        return False
    return importlib.util.find_spec(f"app.bench.runner_{runner}") is not None


class Caches:
    """Folders that begin empty: a first process compiles from scratch, the next one does not."""

    def __init__(self, root: Path, *, plans_only: bool = False) -> None:
        """`plans_only`: drivers and frameworks go on using the user's caches."""
        self.plans = root / "plans"
        self.plans.mkdir(parents=True)
        self.environment: dict[str, str] = {}
        for name, variables in () if plans_only else CACHES.items():
            (root / name).mkdir()
            self.environment |= {variable: str(root / name) for variable in variables}


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for outputs and caches that goes away."""
    with TemporaryDirectory(prefix="dinovision-bench-") as folder:
        yield Path(folder)


def run_job(
    runner: str, job: Job, caches: Caches, folder: Path, limit_s: float = LIMIT_S
) -> RunRecord:
    """The record of a fresh process, which leaves its outputs in `folder`.

    A process that fails in any way gives a record whose outcome says how. Raises OSError when the
    folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / JOB, job)
    failed = RunRecord(runner, job.workload, "", job)
    try:
        done = subprocess.run(
            (sys.executable, "-m", f"app.bench.runner_{runner}", str(folder)),
            cwd=ROOT,
            env=os.environ | caches.environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _with(failed, f"no end within {limit_s:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return _with(failed, lines[-1] if lines else f"exit status {done.returncode}")
    try:
        return load_record(folder / RECORD)
    except (OSError, ValueError) as error:
        return _with(failed, str(error))


def _with(record: RunRecord, fault: str) -> RunRecord:
    return replace(record, outcome=f"error: {fault}")
