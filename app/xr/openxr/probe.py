"""What the active runtime is and offers, without disturbing anyone: no graphics, no frames."""

from __future__ import annotations

from contextlib import closing

from app.xr.driver import XrError
from app.xr.openxr.choices import HEADLESS
from app.xr.openxr.headset import refresh_rates
from app.xr.openxr.instance import XrInstance, offered_extensions
from app.xr.openxr.report import RuntimeReport
from app.xr.openxr.session import XrSession
from app.xr.openxr.swapchain import recommended_view_size


def probe() -> RuntimeReport:
    """Ask the active runtime. Raises `XrError` when there is none, or no headset."""
    offered = offered_extensions()
    headless = HEADLESS in offered
    with closing(XrInstance(headless=headless)) as instance:
        return RuntimeReport(
            runtime=instance.runtime,
            headset=instance.headset,
            view_size=recommended_view_size(instance, 1.0),
            refresh_rates=_refresh_rates(instance) if headless else (),
            extensions=tuple(sorted(offered)),
        )


def _refresh_rates(instance: XrInstance) -> tuple[float, ...]:
    try:
        with closing(XrSession(instance, None)) as session:
            return tuple(refresh_rates(instance, session))
    except XrError:
        return ()  # some runtimes know them only once there is a display
