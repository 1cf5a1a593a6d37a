"""The `headless` driver: the wearer's real poses and input, without graphics (XR_MND_headless).

A headless session has no display and no frames of its own (its specification leaves xrWaitFrame
aside), so the pacing is the simulated compositor's; the poses, predicted for its display times, are
the runtime's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from app.preview.actions import Action
from app.xr.driver import FrameTiming, View
from app.xr.hands import Hand
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.session import XrSession
from app.xr.openxr.wearer import Wearer
from app.xr.simulated import SimulatedDriver


class HeadlessDriver(SimulatedDriver):
    """An `XrDriver` paced like the simulated one, with the head and hands of the active runtime.

    `hz`, `view_size` as there. Raises `ValueError` for what cannot be.
    """

    name = "headless"

    def __init__(
        self, hz: float = 90.0, view_size: tuple[int, int] = (720, 720), *, debug: bool = False
    ) -> None:
        super().__init__(hz, view_size)
        self._debug = debug
        self._session: XrSession | None = None
        self._wearer: Wearer | None = None
        self._undo = ExitStack()

    def open(self) -> None:
        """Start the session and the clock. Raises `XrError` without a runtime that can do it."""
        with ExitStack() as undo:
            instance = XrInstance(headless=True, debug=self._debug)
            undo.callback(instance.close)
            self._session = XrSession(instance, None)
            undo.callback(self._session.close)
            self._wearer = Wearer(instance, self._session)
            undo.callback(self._wearer.close)
            undo.callback(self._session.leave)
            self._undo = undo.pop_all()
        super().open()

    @property
    def wearer(self) -> Wearer:
        """Head, hands and buttons. Raises `RuntimeError` when the driver is not open."""
        if self._wearer is None:
            raise RuntimeError("the headset is not open: call open() first")
        return self._wearer

    @property
    def states(self) -> list[str]:
        """Names of the session's states so far, in order; still readable after `close`."""
        return list(self._session.life.states) if self._session is not None else []

    def wait_frame(self, idle: Callable[[], None]) -> FrameTiming:
        """As the simulated driver's, and follow the session.

        Raises `XrEnded` when it is over, `XrLost` when the runtime is gone, `XrError` when it never
        lets the session begin.
        """
        if self._session is not None:
            self._session.poll()
        return super().wait_frame(idle)

    def locate_views(self, display_ns: int) -> tuple[View, View]:
        """Left and right eye at `display_ns`; the last known ones while they are not tracked."""
        return self.wearer.views(display_ns)

    def actions(self, chunks: int) -> list[Action]:
        """What the controllers asked for since the last call; `chunks` holds now."""
        return self.wearer.actions(chunks)

    def hands(self, display_ns: int) -> tuple[Hand, Hand]:
        """Left and right hand at `display_ns`, as of the last `actions`."""
        return self.wearer.hands(display_ns)

    def close(self) -> None:
        """End the session; safe to call twice. Results and statistics stay readable."""
        super().close()
        self._wearer = None
        self._undo.close()
