"""Draws into a texture, reads it back without waiting and lets pygame copy it to the window."""

from __future__ import annotations

from collections import deque

import numpy as np
import pygame
import wgpu

from app.preview.target import Size
from engine.gpu import Gpu
from engine.readback import Readback

READBACKS = 2
"""One on its way while the next picture is recorded."""

PITCH_ALIGNMENT = 256  # of rows in texture copies


class BlitTarget:
    """Works with every window. The picture shown is one or two frames older than with a surface.

    A resize creates the texture and its readbacks anew; nothing is created per frame.
    """

    name = "blit"
    format = "rgba8unorm-srgb"

    def __init__(self, gpu: Gpu, size: Size) -> None:
        self._gpu = gpu
        self._create(size)

    def _create(self, size: Size) -> None:
        width, height = self.size = size
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
        self._texture = self._gpu.device.create_texture(
            label="preview", size=(width, height, 1), format=self.format, usage=usage
        )
        self._view = self._texture.create_view()
        self._pitch = -(-width * 4 // PITCH_ALIGNMENT) * PITCH_ALIGNMENT
        self._idle = [Readback(self._gpu, self._pitch * height) for _ in range(READBACKS)]
        self._flying: deque[Readback] = deque()
        self._recording: Readback | None = None
        self._newest: np.ndarray | None = None

    def acquire(self, size: Size) -> wgpu.GPUTextureView | None:
        """The texture; None while all readbacks are on their way."""
        if size != self.size:
            self._create(size)
        if self._recording is None:
            if not self._idle:
                self._fetch()
            if not self._idle:
                return None
            self._recording = self._idle.pop()
        return self._view

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Copy the drawn texture to the readback's buffer."""
        if self._recording is not None:
            width, height = self.size
            encoder.copy_texture_to_buffer(
                {"texture": self._texture},
                {
                    "buffer": self._recording.buffer,
                    "bytes_per_row": self._pitch,
                    "rows_per_image": height,
                },
                (width, height, 1),
            )

    def present(self, serial: int) -> None:
        """Show the newest picture that has come back by now."""
        if self._recording is not None:
            self._recording.arm(serial)
            self._flying.append(self._recording)
            self._recording = None
        self._fetch()
        if self._newest is not None:
            self._draw(self._newest)
            self._newest = None

    def _fetch(self) -> None:
        self._gpu.poll()
        while self._flying and (data := self._flying[0].take()) is not None:
            self._idle.append(self._flying.popleft())
            self._newest = data

    def _draw(self, picture: np.ndarray) -> None:
        # The fourth byte is left out: blending by it would cost twenty times as much.
        image = pygame.image.frombuffer(picture.data, self.size, "RGBX", self._pitch)
        screen = pygame.display.get_surface()
        if screen is not None:
            screen.blit(image, (0, 0))
            pygame.display.flip()

    def close(self) -> None:
        """Nothing holds the window."""
