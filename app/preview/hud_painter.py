"""Draws the HUD in a thread: text rendering takes milliseconds that a frame does not have."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from app.scene.hud import HudState, render_hud


class HudPainter:
    """Paints one state at a time; the newest picture is taken once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hud")
        self._future: Future[np.ndarray] | None = None

    @property
    def busy(self) -> bool:
        """Whether a picture is being painted or waits to be taken."""
        return self._future is not None

    def paint(self, state: HudState) -> None:
        """Start painting; ignored while busy."""
        if self._future is None:
            self._future = self._pool.submit(render_hud, state)

    def take(self) -> np.ndarray | None:
        """The finished picture, uint8 [h, w, 4], once; else None."""
        if self._future is None or not self._future.done():
            return None
        picture = self._future.result()
        self._future = None
        return picture

    def close(self) -> None:
        """Wait for the thread to end."""
        self._pool.shutdown(wait=True)
