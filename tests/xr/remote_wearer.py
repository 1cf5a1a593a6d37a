"""A wearer by wire: head, hands and buttons for Monado's `remote` driver (25.0, TCP port 4242)."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field

PORT = 4242
MAGIC = b"mndrmt3\0"
PATIENCE_S = 20.0

# r_remote_data of Monado 25.0: two views (fov, pose, flag), head pose and flags, two controllers
# (pose, velocities, finger curls and axes, buttons).
VIEW = "4f7fI"
HEAD = "7f4?"
CONTROLLER = "7f19f16?"
PACKET = "<8s" + 2 * VIEW + HEAD + 2 * CONTROLLER
BUTTONS = (
    "hand_tracking_active",
    "active",
    "system_click",
    "system_touch",
    "a_click",
    "a_touch",
    "b_click",
    "b_touch",
    "trigger_click",
    "trigger_touch",
    "thumbstick_click",
    "thumbstick_touch",
    "trackpad_touch",
)
IDENTITY = (0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True)
class RemoteHand:
    """A controller at `position`, metres above the floor's origin, with some buttons pressed."""

    position: tuple[float, float, float]
    pressed: frozenset[str] = frozenset()

    def values(self) -> list[float | bool]:
        flags = {"hand_tracking_active", "active"} | self.pressed
        unknown = flags - set(BUTTONS)
        assert not unknown, f"no such buttons: {unknown}"
        axes = [0.0] * 19
        return [
            *IDENTITY,
            *self.position,
            *axes,
            *(name in flags for name in BUTTONS),
            *[False] * 3,
        ]


@dataclass
class RemoteWearer:
    """A connection to a service in remote mode; `send` tells it everything anew."""

    head: tuple[float, float, float] = (0.0, 1.6, 0.0)
    orientation: tuple[float, float, float, float] = IDENTITY
    left: RemoteHand = field(default_factory=lambda: RemoteHand((-0.3, 1.2, -0.4)))
    right: RemoteHand = field(default_factory=lambda: RemoteHand((0.3, 1.2, -0.4)))

    def __post_init__(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", PORT), PATIENCE_S)
                return
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def send(self) -> None:
        no_view = [0.0] * 11 + [0]
        head = [*self.orientation, *self.head, False, False, False, False]
        hands = [*self.left.values(), *self.right.values()]
        self._socket.sendall(struct.pack(PACKET, MAGIC, *no_view, *no_view, *head, *hands))

    def close(self) -> None:
        self._socket.close()
