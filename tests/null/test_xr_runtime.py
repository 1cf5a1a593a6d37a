import json
import platform
from pathlib import Path

import pytest

from app.xr.runtime import OpenXrRuntime, find_runtime


def write(manifest: Path, library: str = "libopenxr_fake.so", name: str | None = "Fake") -> Path:
    manifest.parent.mkdir(parents=True, exist_ok=True)
    runtime = {"library_path": library} | ({"name": name} if name else {})
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "runtime": runtime}))
    return manifest


def find(root: Path, **environ: str) -> OpenXrRuntime | None:
    return find_runtime(environ, root, "linux")


def found(root: Path, **environ: str) -> OpenXrRuntime:
    runtime = find(root, **environ)
    assert runtime is not None
    return runtime


def test_none(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    assert find(tmp_path, HOME=str(tmp_path / "home"), XR_RUNTIME_JSON="") is None


def test_variable_wins_over_every_folder(tmp_path: Path) -> None:
    write(tmp_path / "etc/xdg/openxr/1/active_runtime.json", name="Other")
    forced = write(tmp_path / "forced.json")
    runtime = found(tmp_path, XR_RUNTIME_JSON=str(forced))
    assert (runtime.manifest, runtime.found_by) == (forced, "XR_RUNTIME_JSON")
    assert (runtime.name, runtime.binary, runtime.problem) == ("Fake", "libopenxr_fake.so", None)


def test_folders_in_the_order_of_the_loader(tmp_path: Path) -> None:
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path / "user"),
        "XDG_CONFIG_DIRS": f":{tmp_path / 'first'}:{tmp_path / 'second'}",
    }
    order = ["user", "first", "second", "usr/local/etc", "etc"]
    manifests = [
        write(tmp_path / folder / "openxr/1/active_runtime.json", name=folder) for folder in order
    ]
    for folder, manifest in zip(order, manifests, strict=True):
        assert found(tmp_path, **environ).name == folder
        manifest.unlink()
    assert find(tmp_path, **environ) is None


def test_defaults_of_the_variables(tmp_path: Path) -> None:
    user = write(tmp_path / "home/.config/openxr/1/active_runtime.json", name="user")
    write(tmp_path / "etc/xdg/openxr/1/active_runtime.json", name="system")
    home = str(tmp_path / "home")
    assert found(tmp_path, HOME=home).name == "user"
    user.unlink()
    assert found(tmp_path, HOME=home).name == "system"


@pytest.mark.parametrize(
    ("machine", "name"), [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64")]
)
def test_manifest_of_the_architecture_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, name: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    folder = tmp_path / "etc/openxr/1"
    write(folder / "active_runtime.json", name="any")
    assert found(tmp_path).name == "any"
    write(folder / f"active_runtime.{name}.json", name="own")
    assert found(tmp_path).name == "own"


def test_relative_library_belongs_to_the_real_manifest(tmp_path: Path) -> None:
    real = write(tmp_path / "opt/share/openxr_fake.json", library="../lib/libfake.so")
    library = tmp_path / "opt/lib/libfake.so"
    library.parent.mkdir()
    library.touch()
    link = tmp_path / "etc/openxr/1/active_runtime.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    runtime = found(tmp_path)
    assert runtime.problem is None
    assert Path(runtime.binary).samefile(library)
    library.unlink()
    assert "does not exist" in str(found(tmp_path).problem)


def test_manifest_without_name(tmp_path: Path) -> None:
    write(tmp_path / "etc/openxr/1/active_runtime.json", name=None)
    assert found(tmp_path).name == "unnamed"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[]", "has no runtime"),
        (b"null", "has no runtime"),
        (b'{"runtime": null}', "has no runtime"),
        (b'{"runtime": []}', "has no runtime"),
        (b'{"runtime": {"name": "Fake"}}', "has no runtime"),
    ],
)
def test_bad_manifest_is_a_problem_not_an_error(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    manifest = tmp_path / "etc/openxr/1/active_runtime.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(content)
    runtime = found(tmp_path)
    assert runtime.manifest == manifest
    assert problem in str(runtime.problem)


def test_manifest_that_is_missing_or_a_folder(tmp_path: Path) -> None:
    missing = found(tmp_path, XR_RUNTIME_JSON=str(tmp_path / "gone.json"))
    assert "does not exist" in str(missing.problem)
    assert "cannot be read" in str(found(tmp_path, XR_RUNTIME_JSON=str(tmp_path)).problem)
