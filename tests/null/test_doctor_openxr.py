"""The doctor's OpenXR section where there is no runtime, or a broken one."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from app import doctor_openxr
from app.doctor_openxr import how_to_get_one, how_to_start, openxr_lines, report_lines
from app.xr.openxr.report import RuntimeReport
from app.xr.runtime import OpenXrRuntime

REPORT = RuntimeReport(
    runtime="Fake 1.2.3",
    headset="Fake HMD",
    view_size=(1832, 1920),
    refresh_rates=(72.0, 90.0),
    extensions=("XR_EXT_local_floor", "XR_KHR_vulkan_enable", "XR_MND_headless", "XR_X_other"),
)


def told(report: RuntimeReport = REPORT, fault: str | None = None) -> dict[str, str]:
    return {line.label: line.value for line in report_lines(report, fault)}


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The manifest of the active runtime, whose library is there but is none."""
    library = tmp_path / "libopenxr_fake.so"
    library.write_text("no library")
    manifest = tmp_path / "openxr_steam.json"
    content = {"file_format_version": "1.0.0", "runtime": {"library_path": str(library)}}
    manifest.write_text(json.dumps(content))
    monkeypatch.setenv("XR_RUNTIME_JSON", str(manifest))
    return manifest


def section() -> dict[str, str]:
    return {line.label: line.value for line in openxr_lines()}


def test_no_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_openxr, "find_runtime", lambda: None)
    lines = list(openxr_lines())
    assert [line.label for line in lines] == ["runtime"] and not lines[0].wrong
    assert lines[0].value.startswith("none") and "XR_RUNTIME_JSON" in lines[0].value


def test_advice_names_what_the_system_has() -> None:
    assert "Meta Link" in how_to_get_one("win32") and "Monado" not in how_to_get_one("win32")
    assert "Monado" in how_to_get_one("linux") and "Meta" not in how_to_get_one("linux")


@pytest.mark.parametrize(
    ("name", "manifest", "advice"),
    [
        ("Monado", "openxr_monado.json", "monado-service"),
        ("WiVRn", "openxr_wivrn.json", "wivrn-server"),
        ("SteamVR", "steamxr_linux64.json", "SteamVR"),
        ("unnamed", "oculus_openxr_64.json", "Meta Link"),
        ("unnamed", "runtime.json", "its service"),
    ],
)
def test_advice_for_a_runtime(name: str, manifest: str, advice: str) -> None:
    found = OpenXrRuntime(Path("/opt", manifest), "XR_RUNTIME_JSON", name, "", None)
    assert advice in how_to_start(found)


def test_broken_manifest_is_not_asked(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("the loader cannot use it, so nobody answers")

    monkeypatch.setattr(doctor_openxr, "call_apart", asked)
    runtime.write_text("{")
    assert "is not JSON" in section()["problem"]
    runtime.unlink()
    assert "does not exist" in section()["problem"]


def test_library_that_cannot_be_loaded(runtime: Path) -> None:
    lines = section()
    assert str(runtime) in lines["manifest"] and "XR_RUNTIME_JSON" in lines["manifest"]
    assert "does not answer" in lines["problem"] and "\n" not in lines["problem"]
    assert "open SteamVR" in lines["to start it"]
    assert "headset" not in lines


def hang() -> None:
    time.sleep(600.0)


def test_runtime_that_hangs(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_openxr, "ANSWER_LIMIT_S", 0.5)
    monkeypatch.setattr(doctor_openxr, "ask_runtime", hang)
    lines = section()
    assert lines["problem"] == "no answer within 0.5 s"
    assert "open SteamVR" in lines["to start it"]


def test_report() -> None:
    lines = told()
    assert lines["answers as"] == "Fake 1.2.3" and lines["headset"] == "Fake HMD"
    assert lines["view size"].startswith("1832 x 1920")
    assert lines["refresh rates"] == "72, 90 Hz"
    assert lines["extensions"] == "XR_KHR_vulkan_enable, XR_EXT_local_floor, XR_MND_headless"
    assert "XR_KHR_visibility_mask" in lines["not offered"]
    assert "vulkan" not in lines["not offered"] and "convert" not in lines["not offered"]
    assert lines["frames"] == "can be presented: python run.py headset"


def test_report_of_frames_that_cannot_be_presented() -> None:
    silent = dataclasses.replace(REPORT, refresh_rates=(), extensions=("XR_MND_headless",))
    lines = told(silent)
    assert "XR_KHR_vulkan_enable2 or XR_KHR_vulkan_enable" in lines["frames"]
    assert lines["refresh rates"].startswith("not told")
    assert told(fault="Vulkan cannot be loaded")["frames"].endswith("Vulkan cannot be loaded")
    wrong = [line.label for line in report_lines(silent, None) if line.wrong]
    assert wrong == ["frames"]


def test_missing_binding_is_a_line(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xr.py").write_text("raise ImportError('not here')")
    monkeypatch.syspath_prepend(tmp_path)  # the other process gets it, too
    assert section()["problem"].startswith(
        "OpenXR cannot be loaded (not here): pip install pyopenxr"
    )
