"""The desktop window: pictures out, actions in."""

from __future__ import annotations

import os
import sys

import pygame
import wgpu

from app.preview.actions import Action, Kind, action_for_key
from app.preview.target import PreviewError, Size, WindowTarget
from app.preview.window_blit import BlitTarget
from app.preview.window_surface import SurfaceTarget, SurfaceUnavailableError
from engine.gpu import Gpu

NO_DISPLAY = "no display: set DISPLAY or use --headless"

SDL_ON_LINUX = {
    # By default SDL may put a GL renderer into the window that the surface is made for.
    "SDL_FRAMEBUFFER_ACCELERATION": "0",
    # By default SDL asks the desktop to stop compositing.
    "SDL_VIDEO_X11_NET_WM_BYPASS_COMPOSITOR": "0",
}

SHORTCUT = pygame.KMOD_CTRL | pygame.KMOD_ALT | pygame.KMOD_META
ALT_GR = pygame.KMOD_MODE | pygame.KMOD_RALT


class PreviewWindow:
    """A resizable window that shows what is drawn on the views it hands out.

    Per frame: `begin`, draw on the view with `size` as the target's size, `record`, submit,
    `present`. Nothing here waits for the GPU or for the display's refresh, and nothing is created
    per frame; a resize may create objects, and `resizes` counts them.

    `size` is the wished size in pixels. `surface` True or False insists on a surface or on
    copying; None prefers a surface. Only one window at a time. Raises `PreviewError` when there is
    no display, no window, or not the surface insisted on.
    """

    name: str
    """"surface" or "blit"."""
    note: str
    """Why there is no surface; empty when there is one or none was wanted."""
    format: str
    """Texture format of the views; it never changes."""
    size: Size
    """Width and height in pixels of the latest view."""
    resizes: int
    """How often `size` has changed."""

    def __init__(
        self,
        gpu: Gpu,
        size: Size = (1280, 640),
        title: str = "DinoVision",
        surface: bool | None = None,
    ) -> None:
        self._max_side = int(gpu.device.limits["max-texture-dimension-2d"])
        self._target: WindowTarget | None = None
        self.resizes = 0
        _open_window(size, title)
        try:
            self._target, self.note = _choose_target(gpu, surface)
        except BaseException:
            self.close()
            raise
        self.name = self._target.name
        self.format = self._target.format
        self.size = self._target.size

    def actions(self) -> list[Action]:
        """What the viewer has asked for since the last call, in order."""
        if self._target is None:
            return []
        found = (_action(event) for event in pygame.event.get())
        return [action for action in found if action is not None]

    def begin(self) -> wgpu.GPUTextureView | None:
        """What to draw this frame on; None to leave it out: not visible, or the GPU is behind."""
        size = _visible_size()
        if self._target is None or min(size) < 1 or max(size) > self._max_side:
            return None
        view = self._target.acquire(size)
        if self._target.size != self.size:
            self.size = self._target.size
            self.resizes += 1
        return view

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record what must follow the drawing, into the same submission."""
        if self._target is not None:
            self._target.record(encoder)

    def present(self, serial: int) -> None:
        """Show the picture, after the submission that `Gpu.submit` numbered `serial`."""
        if self._target is not None:
            self._target.present(serial)

    def close(self) -> None:
        """Close the window. Harmless when closed already."""
        target, self._target = self._target, None
        if target is not None:
            target.close()
        pygame.display.quit()


def _open_window(size: Size, title: str) -> None:
    if sys.platform.startswith("linux"):
        # SDL would fall back to windows that nobody sees.
        if not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))):
            raise PreviewError(NO_DISPLAY)
        for name, value in SDL_ON_LINUX.items():
            os.environ.setdefault(name, value)
        if os.environ.get("DISPLAY"):
            os.environ.setdefault("SDL_VIDEODRIVER", "x11,wayland")
    try:
        pygame.display.init()
        pygame.display.set_caption(title)
        pygame.display.set_mode(size, pygame.RESIZABLE)
        pygame.event.pump()
    except (pygame.error, ValueError) as error:
        pygame.display.quit()
        raise PreviewError(f"{NO_DISPLAY} ({error})") from error


def _choose_target(gpu: Gpu, surface: bool | None) -> tuple[WindowTarget, str]:
    """The best way to the open window, and why it is not a surface."""
    width, height = pygame.display.get_window_size()
    size = max(1, width), max(1, height)
    if surface is False:
        return BlitTarget(gpu, size), ""
    try:
        return SurfaceTarget(gpu, size), ""
    except SurfaceUnavailableError as error:
        if surface:
            raise PreviewError(f"no surface, so pictures must be copied: {error}") from error
        return BlitTarget(gpu, size), str(error)


def _visible_size() -> Size:
    if not pygame.display.get_init() or not pygame.display.get_active():
        return 0, 0
    return pygame.display.get_window_size()


def _action(event: pygame.event.Event) -> Action | None:
    if event.type == pygame.QUIT:
        return Action(Kind.QUIT)
    if event.type != pygame.KEYDOWN:
        return None
    alt_gr = event.mod & ALT_GR
    if event.mod & SHORTCUT and not alt_gr:
        return None
    name = pygame.key.name(event.key)
    if not alt_gr and (action := action_for_key(name)):
        return action
    # Digits and brackets are typed with Shift or AltGr on some keyboards. Keys that type nothing
    # are left out: pygame may give them the text of the key struck next.
    types = len(name) == 1 or name.startswith("[")
    return action_for_key(event.unicode) if types else None
