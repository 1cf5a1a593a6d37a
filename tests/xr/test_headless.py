"""The headless driver and the probe on the real Monado."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.xr.monado import NULL_COMPOSITOR, REMOTE, SIMULATED, HeadsetProgram, Monado
from tests.xr.remote_wearer import RemoteWearer

MODULE = "tests.xr.headless_program"


def test_poses_follow_the_wearer_without_graphics(
    monado: Callable[..., Monado], launch: Callable[..., HeadsetProgram]
) -> None:
    service = monado(NULL_COMPOSITOR, REMOTE)
    wearer = RemoteWearer(head=(0.5, 1.7, 0.25))
    wearer.send()
    program = launch(service, "--frames", "300", module=MODULE)
    probed = program.event("probe")
    assert probed["runtime"].startswith("Monado") and "Remote" in probed["headset"]
    assert min(probed["view_size"]) > 0 and "XR_KHR_vulkan_enable2" in probed["extensions"]

    def stands_at(frame: dict, position: tuple[float, float, float]) -> bool:
        return bool(np.abs(np.mean(frame["positions"], axis=0) - position).max() < 0.02)

    assert any(stands_at(program.event("frame"), (0.5, 1.7, 0.25)) for _ in range(100))
    wearer.head = (-0.2, 1.1, 0.0)
    wearer.send()
    assert any(stands_at(program.event("frame"), (-0.2, 1.1, 0.0)) for _ in range(100))
    done = program.event("done")
    assert program.finish() == 0
    assert done["states"][:5] == ["IDLE", "READY", "SYNCHRONIZED", "VISIBLE", "FOCUSED"]
    assert done["states"][-3:] == ["STOPPING", "IDLE", "EXITING"]
    assert done["shown"] > 100
    wearer.close()


def test_killed_service_is_a_loss_without_graphics_too(
    monado: Callable[..., Monado], launch: Callable[..., HeadsetProgram]
) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    program = launch(service, "--frames", "100000", module=MODULE)
    program.event("frame")
    service.kill()
    error = program.event("error")
    assert error["kind"] == "XrLost" and "\n" not in error["message"]
    assert program.finish() == 1
