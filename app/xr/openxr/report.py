"""What a runtime says of itself; pure, unlike `probe`, which asks it."""

from __future__ import annotations

from dataclasses import dataclass

from app.xr.openxr.choices import GRAPHICS


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
    def graphics(self) -> str | None:
        """The extension through which it takes images; None: the wearer would see nothing."""
        return next((name for name in GRAPHICS if name in self.extensions), None)
