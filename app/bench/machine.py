"""The machine that figures are from, and the GPU's clocks where its driver tells them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

LIMIT_S = 10.0
STATIC = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.mem")
MOVING = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
"""MHz, MHz, degrees Celsius, W."""


@lru_cache(maxsize=1)
def machine() -> dict[str, str]:
    """Host, and the first NVIDIA GPU if there is one, in words."""
    facts = {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }
    return facts | {f"gpu.{key}": value for key, value in _ask_nvidia(STATIC).items()}


def clocks() -> dict[str, float]:
    """Clocks, temperature and power of the first NVIDIA GPU now; empty where there is none."""
    found = {}
    for key, value in _ask_nvidia(MOVING).items():
        try:
            found[key] = float(value)
        except ValueError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _ask_nvidia(fields: tuple[str, ...]) -> dict[str, str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = (program, "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
    return dict(zip(fields, values, strict=False))
