"""Draws straight into the window through a surface: X11 and Windows."""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import suppress
from typing import Any

import pygame
import wgpu

from app.preview.target import Size
from engine.errors import GpuError
from engine.gpu import Gpu

FORMATS = ("bgra8unorm-srgb", "rgba8unorm-srgb", "bgra8unorm", "rgba8unorm")
"""What the mirror encodes rightly; every surface offers one of them."""

MAX_UNFINISHED = 2
"""Pictures the GPU may owe the window. Acquiring yet another image could wait for one of them."""

PATIENCE = 10
"""After every so many failures in a row the surface is taken for lost and made again."""

TRIALS = 5


class SurfaceUnavailableError(Exception):
    """No surface for this window or device; the message says why."""


class SurfaceTarget:
    """The window's own images. Nothing is counted as created per frame, nor on a resize.

    Raises `SurfaceUnavailableError` unless a first, black picture can be presented.
    """

    name = "surface"

    def __init__(self, gpu: Gpu, size: Size) -> None:
        self.size = size
        self._gpu = gpu
        self._window = _window_handles()
        self._context: wgpu.GPUCanvasContext | None = None
        self._unfinished: deque[int] = deque()
        self._failures = 0
        self._reason = "its images cannot be acquired"
        self.format = ""
        try:
            self._context = self._connect(size)
            self._present_black()
        except Exception as error:
            self.close()
            raise SurfaceUnavailableError(" ".join(str(error).split())) from error

    def _connect(self, size: Size) -> wgpu.GPUCanvasContext:
        context = self._gpu.api.gpu.get_canvas_context(self._window)
        if not self.format:  # the mirror's pipeline depends on it: chosen once
            preferred = context.get_preferred_format(self._gpu.adapter)
            self.format = preferred if preferred in FORMATS else "bgra8unorm"
        context.set_physical_size(*size)
        context.configure(device=self._gpu.device, format=self.format)
        return context

    def _present_black(self) -> None:
        for _ in range(TRIALS):
            view = self.acquire(self.size)
            if view is not None:
                encoder = self._gpu.device.create_command_encoder()
                attachment = {"view": view, "load_op": "clear", "store_op": "store"}
                encoder.begin_render_pass(color_attachments=[attachment]).end()
                self.present(self._gpu.submit(encoder))
                return
            pygame.event.pump()
        raise SurfaceUnavailableError(self._reason)

    def acquire(self, size: Size) -> wgpu.GPUTextureView | None:
        """The window's next image; None while the GPU is behind or the surface is not ready."""
        if self._gpu_is_behind():
            return None
        try:
            if self._context is None:
                self._context = self._connect(size)
            elif self._context.physical_size != size:
                self._context.set_physical_size(*size)
            texture = self._context.get_current_texture()
        except self._gpu.api.DrawCancelled as reason:
            # An outdated or lost surface has been configured anew by now; most often that helps.
            if "Occluded" not in str(reason):
                self._failed(reason, lost=(self._failures + 1) % PATIENCE == 0)
            return None
        except (self._gpu.api.GPUError, RuntimeError) as error:
            self._failed(error, lost=True)
            return None
        self._failures = 0
        self.size = texture.size[:2]
        return texture.create_view()

    def _gpu_is_behind(self) -> bool:
        pending = self._unfinished
        if len(pending) >= MAX_UNFINISHED:
            completed = self._gpu.poll()
            while pending and pending[0] <= completed:
                pending.popleft()
        return len(pending) >= MAX_UNFINISHED

    def _failed(self, reason: Exception, lost: bool) -> None:
        self._failures += 1
        self._reason = str(reason)
        if lost:
            self._disconnect()

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Nothing: the picture is already where it belongs."""

    def present(self, serial: int) -> None:
        """Hand the image over; the display shows it when the GPU has finished it."""
        if self._context is None:
            return
        self._unfinished.append(serial)
        try:
            self._context.present()
        except self._gpu.api.GPUError as error:
            self._failed(error, lost=True)

    def close(self) -> None:
        """Release the surface; it must not outlive the window."""
        self._disconnect()
        # Dawn deletes the surface's images after the next submission; the window must still be
        # there then.
        with suppress(GpuError):
            self._gpu.submit(self._gpu.device.create_command_encoder())
            self._gpu.wait()
        self._gpu.poll()

    def _disconnect(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            with suppress(self._gpu.api.GPUError):
                context.unconfigure()


def _window_handles() -> dict[str, Any]:
    """The pygame window in the words of wgpu. The surface never waits for the display's refresh."""
    info = pygame.display.get_wm_info()
    match pygame.display.get_driver():
        case "x11":
            pointer = _capsule_pointer(info["display"], b"display")
            handles = {"platform": "x11", "window": info["window"], "display": pointer}
        case "windows":
            handles = {"platform": "windows", "window": info["window"]}
        case driver:
            raise SurfaceUnavailableError(f"pygame's {driver} windows offer none")
    return {"method": "screen", "vsync": False, **handles}


def _capsule_pointer(capsule: object, name: bytes) -> int:
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return int(prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name))
