"""The `doctor` command: what this machine has, and whether the preview can run on it.

Every part is looked at on its own, and libraries are imported where they are asked for: one that
is broken or missing becomes a line of the report, not its end.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from app.doctor_lines import Line, lines_of, print_section
from app.doctor_openxr import openxr_lines
from engine.errors import GpuError, first_line
from engine.implementations import Choice, load

if TYPE_CHECKING:
    from engine.gpu import Gpu

PACKAGES = ("wgpu", "numpy", "opencv-python-headless", "pygame-ce", "pyopenxr", "vulkan")
LIMITS = {
    "storage buffers per stage": "max-storage-buffers-per-shader-stage",
    "invocations per workgroup": "max-compute-invocations-per-workgroup",
    "shared memory": "max-compute-workgroup-storage-size",
    "largest buffer": "max-buffer-size",
    "largest binding": "max-storage-buffer-binding-size",
}
SLOW = "a CPU does the graphics: correct but slow, its figures mean nothing"
TOLERANCE = 1e-4
"""Of the smoke test, absolute; sums of 7 products of numbers below 1 are good to 1e-6."""


def run_doctor(console: Console | None = None, choice: Choice = "auto") -> int:
    """Print the report; 0 if the preview can run, else 1, with what to do in the last line.

    `console` is standard output unless given; on a terminal the report has colours. `choice`: the
    WebGPU implementation to try.
    """
    sections: list[tuple[str, Callable[[], Iterator[Line]]]] = [
        ("Versions", _versions),
        ("Graphics adapters", _adapters),
        ("Dawn", _dawn),
        ("OpenXR", openxr_lines),
        ("Cameras", _cameras),
        ("Display", _display),
    ]
    console = console or Console()
    for title, look in sections:
        print_section(console, title, lines_of(look))
    lines, runs = _preview(choice)
    print_section(console, "Preview", lines)
    return 0 if runs else 1


# Sections


def _versions() -> Iterator[Line]:
    yield Line("system", platform.platform())
    yield Line("python", platform.python_version(), sys.version_info < (3, 11))
    for package in PACKAGES:
        try:
            yield Line(package, version(package))
        except PackageNotFoundError:
            yield Line(package, "not installed: run pip install -e .", wrong=True)
    yield Line("wgpu-native", load("wgpu").version)


def _adapters() -> Iterator[Line]:
    adapters = load("wgpu").adapters()
    if not adapters:
        yield Line("adapter", "none", wrong=True)
    for number, adapter in enumerate(adapters):
        info = adapter.info
        yield Line(f"adapter {number}", info["device"] or "unnamed")
        yield Line("  type", info["adapter_type"])
        if info["adapter_type"] == "CPU":
            yield Line("  note", SLOW)
        yield Line("  driver", info["description"] or "not told")
        yield Line("  back end", info["backend_type"])
        yield Line("  timestamp-query", "yes" if "timestamp-query" in adapter.features else "no")
        for label, limit in LIMITS.items():
            value = adapter.limits[limit]
            yield Line(f"  {label}", str(value) if value < 2048 else _bytes(value))


def _dawn() -> Iterator[Line]:
    """Optional: what is missing is no fault."""
    try:
        dawn = load("dawn")
        adapters = dawn.adapters()
    except GpuError as missing:
        yield Line("dawn", str(missing))
        return
    yield Line("dawn", dawn.version)
    if not adapters:
        yield Line("adapter", first_line(dawn.no_adapter("")))
    for number, adapter in enumerate(adapters):
        yield Line(f"adapter {number}", adapter.info["device"] or "unnamed")
        units = dawn.matrix_units(adapter, adapter.features)
        shape = f"{units.m} x {units.n} x {units.k}, f16 factors, f32 sums" if units else "none"
        yield Line("  matrix units", shape)
        shared = "shared-texture-memory-opaque-f-d" in adapter.features
        yield Line("  images shared with other devices", "yes" if shared else "no")


def _cameras() -> Iterator[Line]:
    from app.camera.images import list_images
    from assets import photos_dir

    train, val = (len(list_images(photos_dir() / part)) for part in ("train", "val"))
    yield Line("photos", f"{train} to train on, {val} held out")
    if not sys.platform.startswith("linux"):
        yield Line("webcams", "not listed on this system; try --camera webcam:0")
        return
    yield from webcams(Path("/dev"), Path("/sys/class/video4linux"))


def webcams(devices: Path, names: Path) -> Iterator[Line]:
    """Video devices below `devices`, named by the kernel's entries below `names`; opens none."""
    found = sorted(devices.glob("video[0-9]*"), key=lambda path: (len(path.name), path.name))
    for device in found:
        number = device.name.removeprefix("video")
        try:
            name = (names / device.name / "name").read_text(encoding="utf-8").strip()
        except OSError:
            name = "unnamed"
        access = "" if os.access(device, os.R_OK | os.W_OK) else "; no permission to open it"
        yield Line(f"webcam:{number}", name + access, wrong=bool(access))
    if not found:
        yield Line("webcams", "none")


def _display() -> Iterator[Line]:
    if has_display():
        yield Line("window", "can be opened")
    else:
        yield Line("window", "headless only: neither DISPLAY nor WAYLAND_DISPLAY is set")


def has_display(environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> bool:
    """Whether a window can be opened, as far as the environment tells; opens none."""
    named = environ.get("WAYLAND_DISPLAY") or environ.get("DISPLAY")
    return bool(named) or not system.startswith("linux")


# The device at work


def _preview(choice: Choice) -> tuple[list[Line], bool]:
    """A try of the device that the preview would use, and whether it can run."""
    try:
        from engine.gpu import Gpu

        gpu = Gpu.open(choice)
        lines = [Line("device", f"{gpu.name}, through {gpu.backend.version}")]
        error = smoke_error(gpu)
    except Exception as fault:
        return [Line("verdict", f"the preview cannot run: {first_line(fault)}", wrong=True)], False
    lines.append(Line("compute", f"a matrix product came back with an error of {error:.1e}"))
    if not error < TOLERANCE:
        cure = f"{gpu.name} computes wrong numbers: update its driver ({gpu.driver})"
        return [*lines, Line("verdict", f"the preview cannot run: {cure}", wrong=True)], False
    command = "python run.py preview" + ("" if has_display() else " --headless")
    slow = f" ({SLOW})" if gpu.facts.is_cpu else ""
    return [*lines, Line("verdict", f"ready{slow}: {command}")], True


def smoke_error(gpu: Gpu) -> float:
    """Largest absolute error of a compiled 5 x 7 by 7 x 3 matrix product; raises on any fault."""
    from engine.compile import compile_graph
    from engine.graph import Graph
    from engine.ops import matmul
    from engine.session import Session

    graph = Graph()
    product = matmul(graph.input("a", (5, 7)), graph.input("b", (7, 3)))
    graph.output("product", product)
    session = Session(gpu, compile_graph(graph, gpu.facts))
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (5, 7)), rng.uniform(-1, 1, (7, 3))
    session.load({"a": a, "b": b})
    session.run()
    return float(np.abs(session.read("product") - a @ b).max())


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
