"""Which OpenXR runtime the loader would take: a look-up of files (Windows: registry) only."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""`platform.machine()` in lower case to the loader's name, where they differ."""


@dataclass(frozen=True)
class OpenXrRuntime:
    """The active runtime's manifest and what it says."""

    manifest: Path
    found_by: str
    """The variable, folder or registry key that named the manifest."""
    name: str
    """What the runtime calls itself; "unnamed" when it does not."""
    binary: str
    """Absolute path, or a bare file name that the dynamic linker looks up."""
    problem: str | None
    """Why the loader cannot use it, in one line; None when nothing speaks against it."""


def find_runtime(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    system: str = sys.platform,
) -> OpenXrRuntime | None:
    """The runtime that an OpenXR loader would choose now, or None when there is none.

    `root` stands before system folders. Never raises on a bad manifest: see `problem`.
    """
    if forced := environ.get("XR_RUNTIME_JSON"):
        return _read(Path(forced), "XR_RUNTIME_JSON")
    if system == "win32":
        named = _registered()
        return _read(named, "the registry") if named else None
    machine = platform.machine().lower()
    machine = ARCHITECTURES.get(machine, machine)
    for folder, found_by in _config_folders(environ, root):
        for name in (f"active_runtime.{machine}.json", "active_runtime.json"):
            manifest = folder / "openxr" / "1" / name
            if os.path.lexists(manifest):
                return _read(manifest, found_by)
    return None


def _config_folders(environ: Mapping[str, str], root: Path) -> Iterator[tuple[Path, str]]:
    """Folders in the loader's order, each with what to call it."""
    if user := environ.get("XDG_CONFIG_HOME"):
        yield Path(user), "XDG_CONFIG_HOME"
    elif home := environ.get("HOME"):
        yield Path(home) / ".config", "the user's configuration"
    if shared := environ.get("XDG_CONFIG_DIRS"):
        for entry in filter(None, shared.split(":")):
            yield Path(entry), "XDG_CONFIG_DIRS"
    else:
        yield root / "etc/xdg", "the system's configuration"
    for folder in ("usr/local/etc", "etc"):
        yield root / folder, "the system's configuration"


def _registered() -> Path | None:
    """The manifest named in the Windows registry."""
    if sys.platform != "win32":
        return None
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Khronos\OpenXR\1") as key:
            value, _ = winreg.QueryValueEx(key, "ActiveRuntime")
    except OSError:
        return None
    return Path(str(value))


def _read(manifest: Path, found_by: str) -> OpenXrRuntime:
    name, library, problem = "unnamed", "", None
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        runtime = content["runtime"]
        name = str(runtime.get("name", name))
        library = str(runtime["library_path"])
        if "/" in library or "\\" in library:
            # The loader resolves links first: a relative path belongs to the real manifest.
            path = manifest.resolve().parent / library
            library = str(path)
            if not path.exists():
                problem = f"the library {path} does not exist: install the runtime again"
    except FileNotFoundError:
        problem = "the manifest does not exist: install the runtime again or remove the setting"
    except OSError as error:
        problem = f"the manifest cannot be read: {error.strerror or error}"
    except ValueError:
        problem = "the manifest is not JSON: install the runtime again"
    except (KeyError, TypeError, AttributeError):
        problem = "the manifest has no runtime with a library_path: install the runtime again"
    return OpenXrRuntime(manifest, found_by, name, library, problem)
