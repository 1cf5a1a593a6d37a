"""The life of an OpenXR session as a pure state machine (OpenXR 1.1, 9.3 Session Lifecycle)."""

from __future__ import annotations

from enum import Enum, IntEnum


class State(IntEnum):
    """XrSessionState."""

    UNKNOWN = 0
    IDLE = 1
    READY = 2
    SYNCHRONIZED = 3
    VISIBLE = 4
    FOCUSED = 5
    STOPPING = 6
    LOSS_PENDING = 7
    EXITING = 8


class Call(Enum):
    """What the application owes the runtime after a change of state."""

    BEGIN = "xrBeginSession"
    END = "xrEndSession"


class SessionLife:
    """Follows the runtime's state events.

    `running` is true from READY to STOPPING: only then are frames waited for. `ended` and `lost`
    say that the session will never run again.
    """

    def __init__(self) -> None:
        self.state = State.UNKNOWN
        self.states: list[str] = []
        """Names of all states entered, in order."""
        self.running = self.ended = self.lost = False

    @property
    def focused(self) -> bool:
        """Whether the session gets input."""
        return self.state is State.FOCUSED

    def changed(self, state: int) -> Call | None:
        """Note an event's state; the call that it asks for, to be made at once.

        An unknown number leaves the state alone: runtimes may add some.
        """
        if state not in State._value2member_map_:
            return None
        self.state = State(state)
        self.states.append(self.state.name)
        self.ended |= self.state is State.EXITING
        self.lost |= self.state is State.LOSS_PENDING
        if self.state is State.READY and not self.running:
            self.running = True
            return Call.BEGIN
        if self.state is State.STOPPING and self.running:
            self.running = False
            return Call.END
        return None
