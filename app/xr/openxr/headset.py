"""One session with everything that belongs to it, made in order and freed in the reverse."""

from __future__ import annotations

from contextlib import ExitStack

from app.xr.openxr.binding import told, xr
from app.xr.openxr.choices import choose_refresh_rate
from app.xr.openxr.frames import FrameCalls
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.session import XrSession
from app.xr.openxr.session_vulkan import graphics_binding, make_vulkan_device
from app.xr.openxr.swapchain import EyeSwapchain, recommended_view_size
from app.xr.openxr.wearer import Wearer


class Headset:
    """A running connection to the active runtime, with graphics.

    `view_size` of one eye, pixels; None: the recommended one times `render_scale`. `hz` asks for
    the nearest refresh rate that the display offers. Raises `XrError` when there is
    no runtime or no headset, or it offers too little.
    """

    def __init__(
        self,
        *,
        view_size: tuple[int, int] | None = None,
        render_scale: float = 1.0,
        hz: float | None,
        debug: bool,
    ) -> None:
        with ExitStack() as undo:
            self.instance = XrInstance(debug=debug)
            undo.callback(self.instance.close)
            recommended = recommended_view_size(self.instance, render_scale)
            self.view_size = view_size or recommended
            self.vulkan = make_vulkan_device(self.instance)
            undo.callback(self.vulkan.close)
            self.session = XrSession(self.instance, graphics_binding(self.vulkan))
            undo.callback(self.session.close)
            self.swapchain = EyeSwapchain(self.session, self.view_size)
            undo.callback(self.swapchain.close)
            self.wearer = Wearer(self.instance, self.session)
            undo.callback(self.wearer.close)
            self._set_refresh_rate(hz)
            self.frames = FrameCalls(self.instance, self.session, self.swapchain)
            self._undo = undo.pop_all()

    def _set_refresh_rate(self, hz: float | None) -> None:
        rate = choose_refresh_rate(refresh_rates(self.instance, self.session), hz)
        if rate is not None:
            with told(f"asking for {rate:g} Hz"):
                xr.request_display_refresh_rate_fb(self.session.handle, rate)

    def close(self) -> None:
        """Leave the session and free everything; safe to call twice.

        `frames.waiter` must have been closed: nothing may be inside the runtime.
        """
        self.session.leave()
        self._undo.close()


def refresh_rates(instance: XrInstance, session: XrSession) -> list[float]:
    """Refresh rates that the display offers, Hz; empty when the runtime does not say."""
    if not instance.has("XR_FB_display_refresh_rate"):
        return []
    with told("asking for refresh rates"):
        return [float(hz) for hz in xr.enumerate_display_refresh_rates_fb(session.handle)]
