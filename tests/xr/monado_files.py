"""Monado and a current lavapipe from Debian, unpacked beside the system: nothing is installed.

Needs apt and a Debian mirror in this machine's own apt sources. Kept in the folder that
DINOVISION_XR_RUNTIME names, else in ~/.cache/dinovision/xr.

    python -m tests.xr.monado_files     fetches it and says where it is
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITES = ("trixie", "trixie-backports")
PACKAGES = (
    "monado-service",
    "libopenxr1-monado",
    "mesa-vulkan-drivers",
    "libvulkan1",
    "libgl1",
    "libglx0",
    "libegl1",
)
# The older lavapipe of the suite itself lacks what Monado's compositor wants.
PREFERENCES = "Package: mesa-vulkan-drivers\nPin: release n=trixie-backports\nPin-Priority: 900\n"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
NOT_NEEDED = ("doc", "man", "locale", "lintian")
PATIENCE_S = 600.0
"""For one run of apt or tar; a mirror that does not answer is given up before that."""


class FetchError(Exception):
    """The runtime cannot be had; the message says why in one line."""


def runtime_folder() -> Path:
    """The folder with the unpacked runtime, fetched now if need be. Raises `FetchError`."""
    named = os.environ.get("DINOVISION_XR_RUNTIME")
    folder = Path(named) if named else Path.home() / ".cache" / "dinovision" / "xr"
    if not (folder / LIBRARIES / "libopenxr_monado.so").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as scratch:
            unpacked = Path(scratch) / "unpacked"
            _fetch(Path(scratch), unpacked)
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)
    _write_manifests(folder)
    return folder


def linker(folder: Path) -> list[str]:
    """The unpacked runtime's own dynamic linker, to be followed by a program."""
    libraries = folder / LIBRARIES
    paths = [libraries, folder / "usr/lib"]
    paths += [libraries / name for name in ("blas", "lapack", "pulseaudio")]
    return [
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        ":".join(map(str, paths)),
    ]


def driver(folder: Path) -> dict[str, str]:
    """Environment variables with which Vulkan programs take the unpacked lavapipe."""
    return {
        "VK_DRIVER_FILES": str(folder / "lvp.json"),
        "VK_LOADER_LAYERS_DISABLE": "~implicit~",
    }


def _fetch(scratch: Path, unpacked: Path) -> None:
    if shutil.which("apt-get") is None or not KEYRING.exists() or platform.machine() != "x86_64":
        raise FetchError("tests/xr fetch Monado from Debian: run them on Debian (amd64)")
    state, cache = scratch / "state", scratch / "cache"
    for folder in (state / "lists" / "partial", cache / "archives" / "partial", unpacked):
        folder.mkdir(parents=True)
    (state / "status").touch()
    mirror = find_mirror()
    sources, preferences = scratch / "sources.list", scratch / "preferences"
    sources.write_text(
        "".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in SUITES)
    )
    preferences.write_text(PREFERENCES)
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": preferences,
        "Dir::Etc::preferencesparts": "-",
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": cache,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",  # else a mirror out of reach is only a warning
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
        "Debug::NoLocking": "true",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    for command in (["update"], ["-y", "--download-only", "install", *PACKAGES]):
        _run([*apt, *command], "cannot fetch Monado")
    excluded = [f"--exclude=./usr/share/{name}*" for name in NOT_NEEDED]
    for package in sorted((cache / "archives").glob("*.deb")):
        archive = scratch / "package.tar"
        with archive.open("wb") as file:
            _run(["dpkg", "--fsys-tarfile", str(package)], "cannot unpack Monado", file)
        _run(["tar", "-xf", str(archive), "-C", str(unpacked), *excluded], "cannot unpack Monado")


def find_mirror(folder: Path = Path("/etc/apt")) -> str:
    """The Debian mirror of the machine's own apt sources. Raises `FetchError` without one."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    for file in files:
        text = file.read_text(errors="replace") if file.is_file() else ""
        found = re.search(
            r"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(\S+/debian(?:\.list)?/?)(?:\s|$)", text, re.M
        )
        if found:
            return found.group(1)
    raise FetchError(f"tests/xr need a Debian mirror, and {folder} names none")


def _run(command: list[str], failure: str, stdout: IO[bytes] | None = None) -> None:
    """Run a program to its end. Raises `FetchError` with `failure` and its first complaint."""
    try:
        result = subprocess.run(
            command,
            stdout=stdout or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"tests/xr {failure}: {command[0]} takes too long") from None
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["no message"]
        complaint = next((line for line in lines if line.startswith("E:")), lines[-1])
        raise FetchError(f"tests/xr {failure}: {command[0]}: {complaint}")


def _write_manifests(folder: Path) -> None:
    """Manifests with absolute paths, which the unpacked ones do not have."""
    libraries = folder / LIBRARIES
    for source, key, library, target in (
        (
            next(folder.glob("usr/share/vulkan/icd.d/lvp_icd*.json")),
            "ICD",
            "libvulkan_lvp.so",
            "lvp.json",
        ),
        (
            folder / "usr/share/openxr/1/openxr_monado.json",
            "runtime",
            "libopenxr_monado.so",
            "monado.json",
        ),
    ):
        manifest = json.loads(source.read_text())
        manifest[key]["library_path"] = str(libraries / library)
        (folder / target).write_text(json.dumps(manifest))


if __name__ == "__main__":
    try:
        print(f"headset runtime: {runtime_folder()}")
    except FetchError as error:
        sys.exit(f"error: {error}")
