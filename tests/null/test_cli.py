"""The command line where no device is needed: usage, help, and errors before the device opens."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.cli import main
from app.config import PreviewConfig, UsageError
from app.preview.target import PreviewError
from engine.errors import CheckpointError
from tests.command_line import ROOT, error_line, fails

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the error should have been found before a device was opened")

    monkeypatch.setattr("engine.gpu.Gpu.open", refuse)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("preview --chunks 0", "--chunks must be at least 1, not 0"),
        ("preview --chunks -1", "--chunks must be at least 1, not -1"),
        ("preview --chunks x", "--chunks"),
        ("preview --chunks 1.5", "--chunks"),
        ("preview --chunks", "--chunks"),
        ("preview --in-flight 0", "--in-flight must be at least 1, not 0"),
        ("preview --policy random", "random"),
        ("preview --job sleep", "sleep"),
        ("preview --frames 0", "--frames"),
        ("preview --seconds -3", "--seconds must be above 0, not -3"),
        ("preview --hz fast", "--hz"),
        ("preview --eye-size 1e3", "--eye-size"),
        ("preview --fresh --checkpoint x", "--fresh and --checkpoint"),
        ("preview --gpu metal", "metal"),
        ("preview --nonsense", "--nonsense"),
        ("preview nonsense", "nonsense"),
        ("nonsense", "nonsense"),
        ("doctor --camera photos", "--camera"),
        ("", "preview"),
    ],
)
def test_wrong_usage(arguments: str, named: str, out: Path, capsys: Capture) -> None:
    words = arguments.split()
    if words[:1] == ["preview"]:
        words += ["--headless", "--out", str(out)]
    assert named in fails(capsys, 2, *words)
    assert not out.exists()


@pytest.mark.parametrize("command", ["", "preview", "doctor"])
def test_help(command: str, capsys: Capture) -> None:
    assert main([*command.split(), "--help"]) == 0
    stdout, stderr = capsys.readouterr()
    assert "usage: run.py" in stdout and stderr == ""


def test_help_names_every_option_of_the_contract_with_units(capsys: Capture) -> None:
    main(["preview", "--help"])
    text = capsys.readouterr().out
    for option in """--camera --chunks --in-flight --policy --job --hz --fresh --headless --frames
        --seconds --out --encoder --checkpoint --gpu --contract --save""".split():
        assert option in text
    assert " Hz" in text and "seconds" in text and "pixels" in text


@pytest.mark.parametrize(
    ("camera", "named"),
    [
        ("nonsense", "unknown camera 'nonsense'"),
        ("webcam:x", "unknown webcam"),
        ("no/such/file.mp4", "does not exist"),
        ("x" * 5000, "File name too long"),
        ("", "unknown camera"),
        ("{}/broken.mp4", "cannot play"),
        ("{}/broken.jpg", "decode"),
        ("{}/empty", "no image"),
    ],
)
def test_unusable_cameras(
    camera: str, named: str, tmp_path: Path, out: Path, capsys: Capture
) -> None:
    for name in ("broken.mp4", "broken.jpg"):
        tmp_path.joinpath(name).write_bytes(b"\0" * 1000)
    tmp_path.joinpath("empty").mkdir()
    line = fails(
        capsys, 1, "preview", "--headless", "--out", str(out), "--camera", camera.format(tmp_path)
    )
    assert named in line and len(line) < 400
    assert not out.exists()


def test_a_place_for_the_checkpoint_is_looked_for_first(
    tmp_path: Path, out: Path, capsys: Capture
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    save = str(file / "x.safetensors")
    assert save in fails(capsys, 2, "preview", "--headless", "--out", str(out), "--save", save)
    assert not out.exists() and file.read_text() == "kept"


def test_without_adapter(out: Path) -> None:
    none = {"VK_DRIVER_FILES": "/none.json", "VK_ICD_FILENAMES": "/none.json"}
    result = subprocess.run(
        [sys.executable, "run.py", "preview", "--headless", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | none,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert "no graphics adapter found: install a Vulkan driver" in error_line(result.stderr)
    assert not out.exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [(CheckpointError("a\nb"), 1), (PreviewError("a\n  b"), 1), (UsageError("a b"), 2)],
)
def test_expected_errors_take_one_line_unless_debugged(
    error: Exception, status: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: PreviewConfig) -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, PreviewConfig, fail)
    assert fails(capsys, status, "preview") == "error: a b"
    with pytest.raises(type(error)):
        main(["preview", "--debug"])


def test_faults_of_the_program_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: PreviewConfig) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.COMMANDS, PreviewConfig, fail)
    with pytest.raises(ZeroDivisionError):
        main(["preview"])


def test_interrupted_before_the_session(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(config: PreviewConfig) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, PreviewConfig, interrupt)
    assert main(["preview"]) == 1
    assert capsys.readouterr().err == "interrupted\n"


def test_log_level_from_the_environment(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setenv("DINOVISION_LOG", "loud")
    assert "DINOVISION_LOG must be one of DEBUG" in fails(capsys, 2, "doctor")

    def speak(config: PreviewConfig) -> int:
        logging.getLogger("app.test").info("heard")
        logging.getLogger("app.test").debug("not heard")
        return 0

    monkeypatch.setitem(cli.COMMANDS, PreviewConfig, speak)
    monkeypatch.setenv("DINOVISION_LOG", "info")
    assert main(["preview"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout == "" and "heard" in stderr and "not heard" not in stderr


def test_a_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, out: Path
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "app.sweep.figures", raising=False)
    monkeypatch.delitem(sys.modules, "app.sweep.sweep", raising=False)
    monkeypatch.delitem(sys.modules, "app.sweep.summary", raising=False)
    line = fails(capsys, 1, "sweep", "--out", str(out))
    assert "the package 'scipy' is missing: pip install" in line
