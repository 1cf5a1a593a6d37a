"""When the headset goes away: go on without it, look for it, and take it back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.loop import FrameLoop
from app.xr.driver import XrDriver, XrError, XrLost
from app.xr.simulated import SimulatedDriver

TRY_EVERY_S = 1.0

log = logging.getLogger(__name__)


def run_with_headset(
    loop: FrameLoop,
    running: Callable[[], bool],
    *,
    wait_s: float,
    say: Callable[[str], None],
) -> None:
    """Run the loop; when its runtime is lost, wait up to `wait_s` for one and go on.

    Meanwhile frames pass that nobody sees, so the network has the whole GPU, keys work and the
    recording goes on. Raises `XrLost` when no runtime came, `XrError` when it came back with eye
    images of another size.
    """
    driver = loop.driver
    while True:
        try:
            loop.run(running)
            return
        except XrLost as lost:
            driver.close()
            say(f"{lost}; waiting up to {wait_s:.0f} s for it to come back")
            if not _wait_for(loop, driver, running, wait_s):
                if not running():
                    return
                raise XrLost(f"{lost}; it did not come back within {wait_s:.0f} s") from lost
            say("the headset is back")


def _wait_for(
    loop: FrameLoop, driver: XrDriver, running: Callable[[], bool], wait_s: float
) -> bool:
    """Whether `driver` could be opened anew and is the loop's again."""
    away = SimulatedDriver(visible=False)
    away.open()
    loop.switch(away)
    give_up = time.monotonic() + wait_s
    while running() and time.monotonic() < give_up:
        next_try = min(give_up, time.monotonic() + TRY_EVERY_S)
        loop.run(lambda until=next_try: running() and time.monotonic() < until)  # type: ignore[misc]
        if _reopen(driver, loop):
            loop.switch(driver)
            return True
    return False


def _reopen(driver: XrDriver, loop: FrameLoop) -> bool:
    try:
        driver.open()
    except XrError as error:
        log.info("no headset yet: %s", error)
        return False
    if driver.view_size != loop.scene.eye_size:
        driver.close()
        raise XrError(
            f"the headset came back with eye images of {driver.view_size} pixels, not "
            f"{loop.scene.eye_size}: start anew"
        )
    driver.show(loop.gpu, loop.scene.eyes)
    return True
