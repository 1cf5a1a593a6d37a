import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import wgpu
import wgpu.backends.wgpu_native  # or its first import would put the real wgpu.gpu back
from rich.console import Console

from app import doctor
from assets import photos_dir


class Report:
    """The outcome of a doctor's run that writes into memory."""

    def __init__(self, *, terminal: bool = False) -> None:
        file = io.StringIO()
        self.code = doctor.run_doctor(Console(file=file, force_terminal=terminal, width=200))
        self.text = file.getvalue()
        self.last = self.text.rstrip().splitlines()[-1]


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Request adapter failed (3): no suitable adapter\nmore detail")

    gpu = SimpleNamespace(request_adapter_sync=request, enumerate_adapters_sync=lambda: [])
    monkeypatch.setattr(wgpu, "gpu", gpu)
    # This machine's runtime, if it has one, is not to be started.
    monkeypatch.setattr("app.doctor_openxr.find_runtime", lambda: None)


def test_without_adapter_the_last_line_says_what_to_install() -> None:
    report = Report()
    assert report.code == 1
    assert "the preview cannot run: no graphics adapter found" in report.last
    assert "mesa-vulkan-drivers" in report.last
    assert "adapter: none" in report.text
    assert "more detail" not in report.text


def test_every_section_is_there_without_a_device() -> None:
    lines = Report().text.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert [t.rstrip(":") for t in titles] == [
        "Versions",
        "Graphics adapters",
        "Dawn",
        "OpenXR",
        "Cameras",
        "Display",
        "Preview",
    ]
    photos = len(list((photos_dir() / "train").glob("*.jpg")))
    assert any(line.startswith(f"  photos: {photos} to train on") for line in lines)
    assert f"  wgpu: {wgpu.__version__}" in lines


def test_terminal_report_says_the_same_and_marks_what_is_wrong() -> None:
    report = Report(terminal=True)
    assert report.code == 1
    assert "no graphics adapter found" in report.text
    assert "\x1b[31m" in report.text


def test_a_broken_part_becomes_a_line_after_what_was_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> Iterator[doctor.Line]:
        yield doctor.Line("webcam:0", "seen before the fault")
        raise OSError("the bus is on fire\nsecond line")

    monkeypatch.setattr(doctor, "_cameras", broken)
    text = Report().text
    assert "  webcam:0: seen before the fault\n  not known: the bus is on fire\nDisplay:" in text


def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-distribution-here"))
    assert "no-such-distribution-here: not installed: run pip install" in Report().text


@pytest.mark.parametrize("error", [0.5, np.nan])
def test_wrong_numbers_fail(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    class Wrong:
        name, driver = "Some GPU (DiscreteGPU) via Vulkan", "driver 1.2"
        backend = SimpleNamespace(version="some library 3")

    monkeypatch.setattr("engine.gpu.Gpu.open", lambda choice: Wrong())
    monkeypatch.setattr(doctor, "smoke_error", lambda gpu: error)
    report = Report()
    assert report.code == 1
    assert "Some GPU (DiscreteGPU) via Vulkan computes wrong numbers" in report.last
    assert "driver 1.2" in report.last


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "win32", True),
        ({}, "darwin", True),
    ],
)
def test_display(environ: dict[str, str], system: str, expected: bool) -> None:
    assert doctor.has_display(environ, system) is expected


def test_webcams_are_named_in_order_without_opening(tmp_path: Path) -> None:
    devices, names = tmp_path / "dev", tmp_path / "names"
    devices.mkdir()
    for number in (10, 2):
        # Opening a pipe without a writer would block for ever.
        os.mkfifo(devices / f"video{number}")
    (devices / "null").touch()
    (names / "video2").mkdir(parents=True)
    (names / "video2" / "name").write_text("Front Camera\n")
    found = list(doctor.webcams(devices, names))
    assert [(line.label, line.value) for line in found] == [
        ("webcam:2", "Front Camera"),
        ("webcam:10", "unnamed"),
    ]


def test_no_webcam(tmp_path: Path) -> None:
    assert [line.value for line in doctor.webcams(tmp_path, tmp_path)] == ["none"]
