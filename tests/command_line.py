"""Running commands in this process for tests, and what an expected error must look like."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main

ROOT = Path(__file__).parent.parent


def error_line(stderr: str) -> str:
    """The one line that tells the error; fails when there is another, or a traceback."""
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, stderr
    assert lines[-1] == errors[0], stderr
    assert "Traceback" not in stderr
    return errors[0]


def fails(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """Run a command that must fail with this exit status; its error line."""
    capsys.readouterr()
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    return error_line(err)
