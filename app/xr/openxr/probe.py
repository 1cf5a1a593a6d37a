"""What the active runtime is and offers, without disturbing anyone: no graphics, no frames."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from app.xr.driver import XrError
from app.xr.openxr.choices import GRAPHICS, HEADLESS
from app.xr.openxr.headset import refresh_rates
from app.xr.openxr.instance import XrInstance, offered_extensions
from app.xr.openxr.session import XrSession
from app.xr.openxr.swapchain import recommended_view_size


@dataclass(frozen=True)
class RuntimeReport:
    """The runtime's own words. `view_size` is one eye's recommended width and height, pixels."""

    runtime: str
    headset: str
    view_size: tuple[int, int]
    refresh_rates: tuple[float, ...]
    """Hz; empty when the runtime does not say without a session with graphics."""
    extensions: tuple[str, ...]
    """All that are offered, in alphabetical order."""

    @property
    def can_present(self) -> bool:
        """Whether the `openxr` driver can show images on it."""
        return any(name in self.extensions for name in GRAPHICS)


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
