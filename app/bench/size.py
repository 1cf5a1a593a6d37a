"""What is installed to run networks: this project's closure of packages, and another's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from app.revision import ROOT

ENGINE = ("wgpu", "numpy")
"""Packages that engine and models import."""
CODE = ("engine", "models")
OPTIONAL = re.compile(r"extra\s*==")
NAME = re.compile(r"[A-Za-z0-9._-]+")


def engine_bytes() -> int:
    """Engine, models, and all that they need beside Python; installed files, without caches."""
    code = sum(_file_bytes((ROOT / folder).rglob("*.py")) for folder in CODE)
    return code + (closure_bytes(ENGINE) or 0)


def closure_bytes(packages: Iterable[str]) -> int | None:
    """Installed files of packages and what they require here; None when one is not installed."""
    try:
        found = _closure(packages)
    except PackageNotFoundError:
        return None
    return sum(
        _file_bytes(Path(str(file.locate())) for file in package.files or ())
        for package in found.values()
    )


def _closure(packages: Iterable[str]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    wanted = list(packages)
    required = set(wanted)
    while wanted:
        name = wanted.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            if name in required:
                raise
            continue  # for another platform
        found[key] = package
        for requirement in package.requires or ():
            match = NAME.match(requirement)
            if match and not OPTIONAL.search(requirement):
                wanted.append(match.group())
    return found


def _file_bytes(files: Iterable[Path]) -> int:
    kept = (file for file in files if file.suffix != ".pyc" and file.is_file())
    return sum(file.stat().st_size for file in kept)
