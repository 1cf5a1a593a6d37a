"""Which DinoVision this is, for records."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=1)
def revision() -> str:
    """Version, and the commit when run from a checkout ("+" after it: with changes)."""
    try:
        number = version("dinovision")
    except PackageNotFoundError:
        number = "unreleased"
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return number
    changed = "+" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{number} ({commit}{changed})"


def _git(*arguments: str) -> str | None:
    if not (ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ("git", "-C", str(ROOT), *arguments),
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
