"""Choosing the headset."""

from __future__ import annotations

from app.xr.driver import XrDriver, XrError
from app.xr.presenter import PresenterChoice
from app.xr.simulated import SimulatedDriver

SIMULATED_EYE = 720
"""Width and height of a simulated eye image, pixels."""


def make_driver(
    name: str,
    *,
    hz: float,
    eye_size: int | None,
    render_scale: float = 1.0,
    presenter: PresenterChoice = "auto",
    debug: bool = False,
) -> XrDriver:
    """The driver called `name`: simulated, openxr or headless; not opened yet.

    `eye_size` in pixels, None for the headset's own. `presenter` is what brings eye images to an
    OpenXR runtime. Raises `XrError` when the packages that a real headset needs are missing.
    """
    square = (eye_size or SIMULATED_EYE, eye_size or SIMULATED_EYE)
    if name == "simulated":
        return SimulatedDriver(hz, square)
    try:
        from app.xr.openxr.driver import OpenXrDriver
        from app.xr.openxr.headless import HeadlessDriver
    except ImportError as error:
        raise XrError(f"OpenXR needs the packages pyopenxr and vulkan: {error}") from error
    if name == "headless":
        return HeadlessDriver(hz, square, debug=debug)
    size = square if eye_size is not None else None
    return OpenXrDriver(
        view_size=size, render_scale=render_scale, hz=hz, presenter=presenter, debug=debug
    )
