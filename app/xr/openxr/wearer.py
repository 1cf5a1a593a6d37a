"""The wearer of a session: head, hands, buttons, and the world around them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from app.preview.actions import Action
from app.xr.driver import View
from app.xr.hands import Hand
from app.xr.openxr.actions import ActionInput
from app.xr.openxr.bindings import RESET_VIEW, action_for_button
from app.xr.openxr.clock import XrClock
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.session import XrSession
from app.xr.openxr.spaces import WorldSpace
from app.xr.openxr.views import ViewLocator
from app.xr.openxr.xr_time import is_usable


class Wearer:
    """What the runtime knows of the wearer. Times are those of `time.perf_counter_ns`."""

    def __init__(self, instance: XrInstance, session: XrSession) -> None:
        self._session = session
        self.clock = XrClock(instance)
        with ExitStack() as undo:
            self.world = WorldSpace(session)
            undo.callback(self.world.close)
            self._views = ViewLocator(session)
            self._input = ActionInput(instance, session)
            undo.callback(self._input.close)
            self._undo = undo.pop_all()

    @property
    def space(self) -> Any:
        """The XrSpace in which everything is located now."""
        return self.world.handle

    def views(self, display_ns: int) -> tuple[View, View]:
        """Left and right eye at `display_ns`; the last known ones while nothing is tracked."""
        xr_time = self.clock.to_xr(display_ns)
        if not self._session.life.running or not is_usable(xr_time):
            return self._views.last
        return self._views.locate(self.space, xr_time)

    def hands(self, display_ns: int) -> tuple[Hand, Hand]:
        """Left and right hand at `display_ns`, as of the last `actions`."""
        xr_time = self.clock.to_xr(display_ns)
        if not self._session.life.focused or not is_usable(xr_time):
            return Hand(), Hand()
        return self._input.hands(self.space, xr_time)

    def actions(self, chunks: int) -> list[Action]:
        """What was asked for since the last call; jobs are cut into `chunks` now.

        The world is recentred here already when the view is to be reset.
        """
        pressed = self._input.sync()
        if RESET_VIEW in pressed:
            self.recentre()
        return [action_for_button(name, chunks) for name in pressed]

    def recentre(self) -> bool:
        """Put the world's origin beneath the head, ahead where it looks; False: not tracked."""
        xr_time = self.clock.to_xr(time.perf_counter_ns())
        return is_usable(xr_time) and self.world.recentre(xr_time)

    def close(self) -> None:
        """Free everything; safe to call twice."""
        self._undo.close()
