"""A part of the device tests on Dawn, which needs a current driver: the unpacked lavapipe.

On a machine whose own driver will do, all of them: DINOVISION_GPU=dawn pytest tests/device
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.implementations import VARIABLE
from tests.xr.monado import ROOT
from tests.xr.monado_files import driver, linker

PART = (
    "test_session.py",
    "test_readback_map.py",
    "test_submit_behind_kernel.py",
    "test_timestamps.py",
    "test_shared_memory.py",
    "test_scene.py",
    "test_matrix_units.py",
)
PATIENCE_S = 300.0


def test_device_tests_pass_on_dawn(xr_runtime: Path) -> None:
    pytest.importorskip("wgpudawn", reason="Dawn is not installed: pip install -e '.[dawn]'")
    python = [*linker(xr_runtime), "--argv0", sys.executable, os.path.realpath(sys.executable)]
    tests = [str(ROOT / "tests" / "device" / name) for name in PART]
    done = subprocess.run(
        [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, **driver(xr_runtime), VARIABLE: "dawn"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
