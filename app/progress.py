"""Progress on the terminal: one line that is rewritten, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.status import Status

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 5.0


class Progress:
    """Steps of a command as lines, and a running state in between. Close when done."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._next_s = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, emoji=False, soft_wrap=True)

    def update(self, line: Callable[[], str]) -> None:
        """Show the running state when it is time to; `line` is only called then."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if not self._console.is_terminal:
            self._next_s = now_s + PLAIN_EVERY_S
            self.say(line())
            return
        self._next_s = now_s + TERMINAL_EVERY_S
        if self._status is None:
            # Never refreshed by rich's own thread: it would compete with the frame loop.
            self._status = self._console.status("", refresh_per_second=0.001)
            self._status.start()
        self._status.update(line())
        self._status._live.refresh()

    def close(self) -> None:
        """Remove the running line."""
        if self._status is not None:
            self._status.stop()
            self._status = None
