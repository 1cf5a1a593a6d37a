"""The openxr driver and the host presenter on the real Monado, through to its compositor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xr.api_layer

from tests.xr.monado import (
    NULL_COMPOSITOR,
    REMOTE,
    SIMULATED,
    X11_COMPOSITOR,
    HeadsetProgram,
    Monado,
)
from tests.xr.remote_wearer import RemoteHand, RemoteWearer
from tests.xvfb import Xvfb, xvfb  # noqa: F401

Start = Callable[..., Monado]
Launch = Callable[..., HeadsetProgram]

LIFE = [
    "IDLE",
    "READY",
    "SYNCHRONIZED",
    "VISIBLE",
    "FOCUSED",
    "VISIBLE",
    "SYNCHRONIZED",
    "STOPPING",
    "IDLE",
    "EXITING",
]


def validation(report: Path) -> dict[str, str]:
    """Environment of a client whose every call the core validation layer checks."""
    layers = next(Path(xr.api_layer.__file__).parent.glob("linux_x86_64"))
    return {
        "XR_API_LAYER_PATH": str(layers),
        "XR_ENABLE_API_LAYERS": "XR_APILAYER_LUNARG_core_validation",
        "XR_CORE_VALIDATION_EXPORT_TYPE": "text",
        "XR_CORE_VALIDATION_FILE_NAME": str(report),
    }


def complaints(report: Path) -> list[str]:
    """What the layer found fault with; it must at least have been there."""
    lines = report.read_text().splitlines()
    assert any("CoreValidation-Initialize" in line for line in lines)
    return [line for line in lines if "VALID_DEBUG" not in line]


def test_two_hundred_frames(monado: Start, launch: Launch, tmp_path: Path) -> None:
    report = tmp_path / "validation.txt"
    images = tmp_path / "images.npz"
    program = launch(
        monado(NULL_COMPOSITOR, SIMULATED),
        *("--frames", "200", "--check-every", "20", "--images", str(images)),
        **validation(report),
    )
    opened, done = program.event("open"), program.event("done")
    assert program.finish() == 0, program.errors()
    assert opened["space"] == "LOCAL_FLOOR" and opened["imports"]
    assert opened["mask"] == [[12, 12], [12, 12]]
    assert done["states"] == LIFE
    assert done["frames"] == 200 and done["rendered"] >= 190
    assert done["idles"] > 5 * done["frames"]
    assert done["results"] >= done["rendered"] - 3 and done["in_order"]
    assert done["shown"] >= done["rendered"] * 0.8
    assert set(done["ages"]) <= {0, 1, 2} and 0 in done["ages"]
    assert done["created"] == 0 and done["invalid"] == 0
    assert done["garbage"] < done["frames"], "the garbage collector is off while frames pass"
    assert complaints(report) == []
    assert done["compared"] >= 5 and done["largest_difference"] == 0
    with np.load(images) as kept:
        shown = kept["shown"]
    left, right = np.split(shown.astype(int), 2, axis=1)
    assert left.std() > 10 and right.std() > 10
    assert 0.2 < np.abs(left - right).mean() < 60, "each eye has its own view of the same room"


def test_patience_of_zero_shows_the_image_before(monado: Start, launch: Launch) -> None:
    program = launch(
        monado(NULL_COMPOSITOR, SIMULATED),
        *("--frames", "30", "--patience", "0", "--gpu", "wgpu", "--presenter", "shared"),
    )
    opened, done = program.event("open"), program.event("done")
    assert program.finish() == 0, program.errors()
    assert opened["presenter"] == "host" and "(--gpu dawn does)" in opened["note"]
    assert 1 in done["ages"], "no frame waited for its own image"


def test_older_vulkan_extension_and_no_import(monado: Start, launch: Launch) -> None:
    program = launch(
        monado(NULL_COMPOSITOR, SIMULATED),
        *("--frames", "30", "--check-every", "5", "--no-imports"),
        *("--graphics", "XR_KHR_vulkan_enable"),
    )
    opened, done = program.event("open"), program.event("done")
    assert program.finish() == 0, program.errors()
    assert "XR_KHR_vulkan_enable" in opened["extensions"] and not opened["imports"]
    assert done["compared"] >= 2 and done["largest_difference"] == 0
    assert done["created"] == 0


def test_compositor_shows_the_room(
    monado: Start,
    launch: Launch,
    xvfb: Xvfb,  # noqa: F811
) -> None:
    service = monado(X11_COMPOSITOR, SIMULATED, {"DISPLAY": xvfb.display})
    program = launch(service, "--frames", "100000", "--scale", "0.2")
    program.event("open")

    def shows_panels(screen: np.ndarray) -> bool:
        # The camera panel is orange, sRGB (200, 90, 30), once for each eye.
        orange = np.abs(screen.astype(int) - (200, 90, 30)).max(axis=2) < 12
        columns = np.count_nonzero(orange, axis=0) > 20
        return int(np.count_nonzero(np.diff(columns.astype(int)) == 1)) == 2

    xvfb.wait_for_picture(shows_panels)


def test_head_moves_the_picture(monado: Start, launch: Launch) -> None:
    service = monado(NULL_COMPOSITOR, REMOTE)
    wearer = RemoteWearer(head=(0.5, 1.7, 0.25))
    wearer.send()
    program = launch(service, "--frames", "100000", "--views", "5")
    program.events("open")

    def eyes_near(position: tuple[float, float, float]) -> bool:
        views = program.event("views")
        middle = np.mean(views["positions"], axis=0)
        return bool(np.abs(middle - position).max() < 0.02)

    assert any(eyes_near((0.5, 1.7, 0.25)) for _ in range(40))
    wearer.head, wearer.orientation = (-0.4, 1.2, -0.1), (0.0, 0.5**0.5, 0.0, 0.5**0.5)
    wearer.send()
    assert any(eyes_near((-0.4, 1.2, -0.1)) for _ in range(40))
    turned = program.event("views")
    assert np.allclose(np.abs(turned["orientations"][0]), (0, 0.5**0.5, 0, 0.5**0.5), atol=0.01)
    wearer.close()


def test_buttons_and_hands(monado: Start, launch: Launch) -> None:
    service = monado(NULL_COMPOSITOR, REMOTE)
    wearer = RemoteWearer()
    wearer.send()
    program = launch(service, "--frames", "100000", "--hands", "5", "--views", "10")
    while "FOCUSED" not in program.event("views")["states"]:
        pass

    def press(left: set[str], right: set[str]) -> None:
        wearer.left = RemoteHand((-0.3, 1.2, -0.5), frozenset(left))
        wearer.right = RemoteHand((0.35, 1.1, -0.4), frozenset(right))
        wearer.send()

    def asks(kind: str) -> int:
        """The value of the next action, which must be of this kind; the button is let go."""
        action = program.event("action")
        assert action["kind"] == kind
        press(set(), set())
        for _ in range(3):
            program.event("hands")
        return int(action["value"])

    press({"b_click"}, set())
    assert asks("chunks") == 6
    press({"a_click"}, set())
    assert asks("chunks") == 4
    press(set(), {"a_click"})
    asks("train")
    press(set(), {"b_click"})
    asks("policy")
    press({"thumbstick_click"}, set())
    asks("record")
    press({"trigger_click"}, set())
    holding = next(
        hands for _ in range(40) if (hands := program.event("hands"))["grabbing"] == [True, False]
    )
    assert np.allclose(holding["grips"], [(-0.3, 1.2, -0.5), (0.35, 1.1, -0.4)], atol=0.02)
    wearer.close()


def test_reset_view_turns_the_world(monado: Start, launch: Launch) -> None:
    service = monado(NULL_COMPOSITOR, REMOTE)
    wearer = RemoteWearer(head=(1.0, 1.6, 0.5), orientation=(0.0, 0.5**0.5, 0.0, 0.5**0.5))
    wearer.send()
    program = launch(service, "--frames", "100000", "--views", "5")
    while "FOCUSED" not in program.event("views")["states"]:
        pass
    wearer.right = RemoteHand((0.3, 1.2, -0.4), frozenset({"thumbstick_click"}))
    wearer.send()
    ahead = (0.0, 1.6, 0.0)
    found = None
    for _ in range(40):
        found = program.event("views")
        if np.abs(np.mean(found["positions"], axis=0) - ahead).max() < 0.02:
            break
    assert found is not None
    assert np.allclose(np.mean(found["positions"], axis=0), ahead, atol=0.02)
    assert np.allclose(np.abs(found["orientations"][0]), (0, 0, 0, 1), atol=0.02)
    wearer.close()


def test_killed_service_is_a_loss(monado: Start, launch: Launch) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    program = launch(service, "--frames", "100000", "--views", "5")
    program.event("views")
    service.kill()
    error = program.event("error")
    assert error["kind"] == "XrLost"
    assert "went away" in error["message"] and "\n" not in error["message"]
    assert program.finish() == 1


def test_no_service_is_one_line(monado: Start, launch: Launch) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    service.kill()
    program = launch(service)
    error = program.event("error")
    assert error["kind"] == "XrError"
    assert "start its service" in error["message"] and "\n" not in error["message"]
    assert program.finish() == 1


@pytest.mark.parametrize("named", [True, False])
def test_no_runtime_is_one_line(monado: Start, launch: Launch, tmp_path: Path, named: bool) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    environment = {name: str(tmp_path) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")}
    program = launch(
        service, XR_RUNTIME_JSON=str(tmp_path / "gone.json") if named else "", **environment
    )
    message = program.event("error")["message"]
    assert ("gone.json" if named else "XR_RUNTIME_JSON") in message and "\n" not in message
    assert program.finish() == 1
