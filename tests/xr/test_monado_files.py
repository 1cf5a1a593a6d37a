"""Where the runtime is fetched from, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.xr import monado_files
from tests.xr.monado_files import FetchError, find_mirror, runtime_folder

DEB822 = "Types: deb\n# a comment\nURIs: http://mirror.test/debian\nSuites: stable\n"
SECURITY = "Types: deb\nURIs: http://mirror.test/debian-security\nSuites: stable-security\n"


@pytest.mark.parametrize(
    ("file", "text", "mirror"),
    [
        ("sources.list", "deb http://a.test/debian/ stable main\n", "http://a.test/debian/"),
        ("sources.list", "deb [arch=amd64] http://a.test/debian x y\n", "http://a.test/debian"),
        ("sources.list.d/x.sources", SECURITY + "\n" + DEB822, "http://mirror.test/debian"),
        (
            "sources.list.d/x.sources",
            "URIs: mirror+file:///etc/apt/mirrors/debian.list\n",
            "mirror+file:///etc/apt/mirrors/debian.list",
        ),
    ],
)
def test_mirror_of_the_machine(tmp_path: Path, file: str, text: str, mirror: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert find_mirror(tmp_path) == mirror


def test_machine_without_a_mirror(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a.test/other stable main\n# deb /debian\n")
    with pytest.raises(FetchError, match="need a Debian mirror"):
        find_mirror(tmp_path)


def test_mirror_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monado_files, "find_mirror", lambda: f"file:{tmp_path}/debian")
    monkeypatch.setenv("DINOVISION_XR_RUNTIME", str(tmp_path / "runtime"))
    with pytest.raises(FetchError, match=r"cannot fetch Monado: apt-get: E: .*debian") as caught:
        runtime_folder()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "nothing half done is left"
