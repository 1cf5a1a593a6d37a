"""The shared presenter: no copy through the host; and when it is not to be had."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from app.xr.driver import XrError
from app.xr.openxr import presenters
from app.xr.openxr.presenter_shared import SharedPresenter
from app.xr.openxr.shared_fences import KINDS
from app.xr.openxr.shared_images import MEMORY_FEATURE, check_shareable
from app.xr.openxr.vulkan_device import SHARING_EXTENSIONS
from app.xr.presenter import PresenterChoice
from tests.xr.monado import NULL_COMPOSITOR, SIMULATED, HeadsetProgram, Monado

Start = Callable[..., Monado]
Launch = Callable[..., HeadsetProgram]


def test_shared_images_are_the_hosts(monado: Start, launch: Launch) -> None:
    pytest.importorskip("wgpudawn", reason="Dawn is not installed")
    service = monado(NULL_COMPOSITOR, SIMULATED)
    program = launch(service, module="tests.xr.presenter_program")
    pixels, newest, frames, closed, lost, refused = (
        program.event(name) for name in ("pixels", "newest", "frames", "closed", "lost", "refused")
    )
    assert program.finish() == 0, program.errors()
    assert pixels["host"] == pixels["between"] == 0 and min(pixels["spread"]) > 50
    assert newest["early"] == 0 and newest["shown"] == newest["again"] == newest["first"] + 2
    assert newest["skipped"] == 2
    assert len(frames["open_files"]) == 1 and abs(frames["objects"]) < 20
    assert frames["created"] == frames["garbage"] == frames["skipped"] == 0
    assert frames["buffers"] == frames["vulkan_buffers"] == frames["host_bytes"] == 0
    assert closed["after"] <= closed["before"]
    assert lost["after"] == lost["before"] and refused["after"] == refused["before"]
    name, note = refused["told"]
    assert name == "host" and note.endswith("no such memory")
    assert refused["auto"] == "host"


def test_a_headset_shows_shared_images(monado: Start, launch: Launch) -> None:
    pytest.importorskip("wgpudawn", reason="Dawn is not installed")
    program = launch(
        monado(NULL_COMPOSITOR, SIMULATED),
        *("--frames", "60", "--scale", "0.3", "--check-every", "6"),
        *("--gpu", "dawn", "--presenter", "shared"),
    )
    opened, done = program.event("open"), program.event("done")
    assert program.finish() == 0, program.errors()
    assert opened["presenter"] == "shared" and opened["buffers"] == 0
    assert done["compared"] >= 3 and done["largest_difference"] == 0
    assert done["host_bytes"] == 0 and done["created"] == 0 and 0 in done["ages"]
    assert done["garbage"] < done["frames"]


FENCE_FEATURES = [kind.feature for kind in KINDS]


def device(**changes: Any) -> Any:
    """The session's device, as far as sharing depends on it."""
    facts = {
        "name": "card",
        "physical": None,
        "extensions": list(SHARING_EXTENSIONS),
        "uuids": (b"d", b"v"),
    }
    return SimpleNamespace(**(facts | changes))


def renderer(**changes: Any) -> Any:
    """The renderer's, on Dawn."""
    features = changes.pop("features", {MEMORY_FEATURE, *FENCE_FEATURES})
    facts = {"implementation": "dawn", "name": "card via Vulkan", "adapter": None}
    return SimpleNamespace(device=SimpleNamespace(features=features), **(facts | changes))


@pytest.mark.parametrize(
    ("gpu", "vulkan", "reason"),
    [
        (renderer(implementation="wgpu"), device(), "--gpu dawn"),
        (renderer(), device(extensions=[SHARING_EXTENSIONS[0]]), SHARING_EXTENSIONS[1]),
        (renderer(features=FENCE_FEATURES), device(), MEMORY_FEATURE),
        (renderer(features={MEMORY_FEATURE}), device(), "no fences in common"),
        (
            renderer(),
            device(uuids=(b"other", b"v"), name="integrated"),
            "the headset on integrated",
        ),
    ],
)
def test_why_images_cannot_be_shared(
    gpu: Any, vulkan: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = {"vulkan_uuids": {"device_uuid": b"d", "driver_uuid": b"v"}}
    extras = SimpleNamespace(get_adapter_properties=lambda adapter: identity)
    monkeypatch.setattr("app.xr.openxr.shared_images._extras", lambda: extras)
    monkeypatch.setattr("app.xr.openxr.shared_fences._exportable", lambda physical, kind: True)
    assert check_shareable(renderer(), device()) is KINDS[0]
    assert (
        check_shareable(renderer(features=[MEMORY_FEATURE, FENCE_FEATURES[1]]), device())
        is KINDS[1]
    )
    with pytest.raises(XrError, match=reason) as refused:
        check_shareable(gpu, vulkan)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("choice", "imports", "is_cpu", "shares", "name", "reason", "closed"),
    [
        ("auto", True, False, True, "host", "cost less than sharing", []),
        ("auto", False, False, True, "shared", "shared with the headset", ["host"]),
        ("auto", False, True, True, "host", "a CPU device waits", ["host"]),
        ("auto", False, False, False, "host", "no memory to share", ["host"]),
        ("shared", True, True, True, "shared", "shared with the headset", []),
        ("shared", True, False, False, "host", "no memory to share", []),
        ("host", False, False, True, "host", "the host's memory", []),
    ],
)
def test_which_presenter(
    choice: PresenterChoice,
    imports: bool,
    is_cpu: bool,
    shares: bool,
    name: str,
    reason: str,
    closed: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What costs less on the device at hand, and a line that says why."""
    left: list[str] = []

    def host(*parts: Any, note: str = "eye images go through the host's memory") -> Any:
        close = partial(left.append, "host")
        return SimpleNamespace(name="host", note=note, imports=imports, close=close)

    def shared(*parts: Any) -> Any:
        if not shares:
            raise XrError("no memory to share")
        return SimpleNamespace(name="shared", note=SharedPresenter.note)

    monkeypatch.setattr(presenters, "HostPresenter", host)
    monkeypatch.setattr(presenters, "SharedPresenter", shared)
    gpu: Any = SimpleNamespace(facts=SimpleNamespace(is_cpu=is_cpu))
    unused: Any = None
    made = presenters.make_presenter(choice, gpu, unused, unused, unused)
    assert made.name == name and reason in made.note and "\n" not in made.note
    assert left == closed
