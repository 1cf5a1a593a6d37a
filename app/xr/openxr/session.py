"""The OpenXR session: creation, events, begin and end, exit."""

from __future__ import annotations

import time
from typing import Any

from app.xr.driver import XrEnded, XrError, XrLost
from app.xr.openxr.binding import STEREO, told, xr
from app.xr.openxr.instance import XrInstance, quietly
from app.xr.openxr.session_life import Call, SessionLife

READY_LIMIT_S = 30.0
"""A session that has not become ready by then never will: the headset is off or taken."""

EXIT_LIMIT_S = 2.0


class XrSession:
    """A session of `instance`, on the graphics of `binding` (None: headless).

    Raises `XrError` when the runtime refuses it.
    """

    def __init__(self, instance: XrInstance, binding: Any | None) -> None:
        self._instance = instance
        self.life = SessionLife()
        self.masks_changed = True
        """Whether visibility masks should be fetched (anew)."""
        """Whether the runtime announced new visibility masks; reset by whoever fetches them."""
        self._created = time.monotonic()
        self._begun_once = False
        with told("creating the session"):
            self.handle: Any = xr.create_session(
                instance.handle, xr.SessionCreateInfo(system_id=instance.system, next=binding)
            )

    def poll(self) -> None:
        """Follow the runtime's events.

        Raises `XrEnded` when the session is over, `XrLost` when it or the runtime is lost, and
        `XrError` when it does not become ready within `READY_LIMIT_S`.
        """
        for event in self._instance.events():
            kind = event.type
            if kind == xr.StructureType.EVENT_DATA_SESSION_STATE_CHANGED:
                self._owe(self.life.changed(int(event._state)))
            elif kind == xr.StructureType.EVENT_DATA_INSTANCE_LOSS_PENDING:
                self.life.lost = True
            elif kind == xr.StructureType.EVENT_DATA_VISIBILITY_MASK_CHANGED_KHR:
                self.masks_changed = True
        if self.life.lost:
            raise XrLost("the OpenXR runtime is about to go away: start it again")
        if self.life.ended:
            raise XrEnded("the headset ended the session")
        late = time.monotonic() - self._created > READY_LIMIT_S
        if late and not self._begun_once:
            raise XrError(
                f"the headset did not become ready within {READY_LIMIT_S:.0f} s (state "
                f"{self.life.state.name}): put it on, and close other XR programs"
            )

    def _owe(self, call: Call | None) -> None:
        if call is Call.BEGIN:
            self._begun_once = True
            with told("beginning the session"):
                xr.begin_session(self.handle, xr.SessionBeginInfo(STEREO))
        elif call is Call.END:
            with told("ending the session"):
                xr.end_session(self.handle)

    def leave(self) -> None:
        """Ask for the exit and see it through for at most `EXIT_LIMIT_S`."""
        if self.handle is None or not self.life.running:
            return
        try:
            with told("asking to exit"):
                xr.request_exit_session(self.handle)
            deadline = time.monotonic() + EXIT_LIMIT_S
            while time.monotonic() < deadline:
                self.poll()
                time.sleep(0.002)
        except XrError:
            pass  # ended as wished, or gone anyhow

    def close(self) -> None:
        """Destroy the session; safe to call twice and after a loss."""
        if self.handle is not None:
            quietly(xr.destroy_session, self.handle)
        self.handle = None
