"""The doctor's look at OpenXR: the runtime, how it was found, what it offers, or how to start one.

A runtime is other people's code with a service behind it: it is asked in a process of its own and
for a bounded time, so that a dead one can neither hang nor crash the report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from app.apart import ApartError, call_apart
from app.doctor_lines import Line
from app.xr.openxr.choices import CLOCKS, GRAPHICS, HEADLESS, WELCOME
from app.xr.openxr.report import RuntimeReport
from app.xr.runtime import OpenXrRuntime, find_runtime

ANSWER_LIMIT_S = 20.0
"""For the runtime's answer; one that starts its service by itself takes seconds."""

STARTS = {
    "wivrn": "run wivrn-server or its dashboard, then connect from the WiVRn app in the headset",
    "monado": "run monado-service; SIMULATED_ENABLE=1 gives it a simulated headset",
    "steam": "open SteamVR and switch the headset on",
    "oculus": "open the Meta Link app, connect the headset and choose Link in it",
}
"""How to start a runtime, by what occurs in its name or its manifest's."""


def openxr_lines() -> Iterator[Line]:
    """The section's lines. Takes up to `ANSWER_LIMIT_S`; never raises for a faulty runtime."""
    runtime = find_runtime()
    if runtime is None:
        yield Line("runtime", f"none: the preview works without; {how_to_get_one()}")
        return
    yield Line("runtime", runtime.name)
    yield Line("manifest", f"{runtime.manifest} (from {runtime.found_by})")
    yield Line("library", runtime.binary or "none")
    if runtime.problem:
        yield Line("problem", runtime.problem, wrong=True)
        return
    try:
        report, fault = call_apart(ask_runtime, ANSWER_LIMIT_S)
    except ApartError as error:
        yield Line("problem", str(error), wrong=True)
        yield Line("to start it", how_to_start(runtime))
        return
    yield from report_lines(report, fault)


def ask_runtime() -> tuple[RuntimeReport, str | None]:
    """What the active runtime says, and why this program could not draw for it, if so.

    Raises `XrError` when there is no answer. Loads the OpenXR loader: not for the doctor's process.
    """
    from app.xr.driver import XrError
    from app.xr.openxr.probe import probe

    report = probe()
    try:
        from app.xr.openxr import vulkan_device  # noqa: F401
    except XrError as error:
        return report, str(error)
    return report, None


def report_lines(report: RuntimeReport, fault: str | None) -> Iterator[Line]:
    """The lines about a runtime that answered; `fault` says why nothing can be drawn for it."""
    yield Line("answers as", report.runtime)
    yield Line("headset", report.headset)
    width, height = report.view_size
    yield Line("view size", f"{width} x {height} for each eye, recommended")
    rates = ", ".join(f"{rate:g}" for rate in report.refresh_rates)
    yield Line("refresh rates", f"{rates} Hz" if rates else "not told before images are shown")
    optional = (name for name in (*WELCOME, HEADLESS) if name not in CLOCKS)  # one of those it has
    wanted = [report.graphics or GRAPHICS[0], *optional]
    for title, offered in (("extensions", True), ("not offered", False)):
        names = [name for name in wanted if (name in report.extensions) is offered]
        if names:
            yield Line(title, ", ".join(names))
    if report.graphics is None:
        missing = f"cannot be presented: the runtime offers no {' or '.join(GRAPHICS)}"
        yield Line("frames", missing, wrong=True)
    elif fault is not None:
        yield Line("frames", f"cannot be presented: {fault}", wrong=True)
    else:
        yield Line("frames", "can be presented: python run.py headset")


def how_to_get_one(system: str = sys.platform) -> str:
    """What to do on a system without an active runtime."""
    runtimes = "SteamVR or Meta Link" if system == "win32" else "SteamVR, WiVRn or Monado"
    return (
        f"for a headset start {runtimes} and make it the active OpenXR runtime, or name its "
        "manifest in XR_RUNTIME_JSON"
    )


def how_to_start(runtime: OpenXrRuntime) -> str:
    """What to do about a runtime that is installed and does not answer, or finds no headset."""
    names = f"{runtime.name} {runtime.manifest.name}".lower()
    found = (advice for name, advice in STARTS.items() if name in names)
    return next(found, "start its service and switch the headset on")
