"""Where the mirror is drawn, and how it gets from there to the window."""

from __future__ import annotations

from typing import Protocol

import wgpu

Size = tuple[int, int]
"""Width and height in pixels."""


class PreviewError(Exception):
    """The preview window cannot be opened. One line that says what to do."""


class WindowTarget(Protocol):
    """One way of bringing pictures to the open pygame window, without ever waiting for the GPU."""

    name: str
    format: str
    """Texture format of what is drawn on."""
    size: Size
    """Size of the view that was acquired last; the window's at first."""

    def acquire(self, size: Size) -> wgpu.GPUTextureView | None:
        """What to draw the next picture on, resized to `size`; None to leave this picture out."""

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record what must follow the drawing, into the same submission."""

    def present(self, serial: int) -> None:
        """Bring the picture of the submission `serial` to the window, now or when it is done."""

    def close(self) -> None:
        """Let go of the window."""
