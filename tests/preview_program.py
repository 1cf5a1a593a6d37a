"""A preview of eyes of known colours, for tests: tells what happens, a line each.

M changes the view, H tells the created objects, R loses the surface, S breaks it, Esc leaves.
"""

import sys
import weakref
from typing import Any

import numpy as np
import wgpu

from app.preview.actions import Action, Kind
from app.preview.window import PreviewWindow
from app.scene.mirror import Mirror
from engine.gpu import Gpu

TITLE = "Preview under test"
SIZE = (200, 100)
EYES = np.array([[(200, 60, 30), (40, 90, 210)], [(230, 220, 120), (20, 160, 70)]], np.uint8)
"""Colours of the left and the right eye; upper halves, then lower halves."""


def eyes_texture(gpu: Gpu) -> wgpu.GPUTexture:
    image = np.full((64, 128, 4), 255, np.uint8)
    image[..., :3] = EYES.repeat(32, axis=0).repeat(64, axis=1)
    texture = gpu.device.create_texture(
        size=(128, 64, 1),
        format="rgba8unorm-srgb",
        usage=wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_DST,
    )
    gpu.queue.write_texture({"texture": texture}, image, {"bytes_per_row": 512}, (128, 64, 1))
    return texture


def lose_surface(window: PreviewWindow, error: Exception) -> None:
    """From now on the present surface gives no images; one made later does."""
    context = window._target._context  # type: ignore[union-attr]
    kind, lost = type(context), weakref.ref(context)
    acquire = kind.get_current_texture

    def acquire_unless_lost(context: Any) -> Any:
        if context is lost():
            raise error
        kind.get_current_texture = acquire
        print("recovered", flush=True)
        return acquire(context)

    kind.get_current_texture = acquire_unless_lost


def main(way: str) -> None:
    gpu = Gpu.open()
    window = PreviewWindow(gpu, SIZE, TITLE, surface={"surface": True, "blit": False}.get(way))
    mirror = Mirror(gpu.device, eyes_texture(gpu).create_view(), window.format)
    print("open", window.name, window.format, *window.size, window.note, flush=True)

    def react(action: Action) -> None:
        print("action", action.kind, action.value, flush=True)
        match action.kind:
            case Kind.VIEW:
                mirror.view = "left" if mirror.view == "both" else "both"
            case Kind.HUD:
                print("created", gpu.objects_created, flush=True)
            case Kind.RECORD:
                lose_surface(window, gpu.api.DrawCancelled("Lost (5)"))
            case Kind.SAVE:
                lose_surface(window, gpu.api.GPUError("no surface"))

    resizes, leaving = 0, False
    while not leaving:
        for action in window.actions():
            react(action)
            leaving |= action.kind == Kind.QUIT
        view = window.begin()
        if window.resizes != resizes:
            resizes = window.resizes
            print("resized", *window.size, flush=True)
        if view is None:
            continue
        encoder = gpu.device.create_command_encoder()
        mirror.encode(encoder, view, window.size)
        window.record(encoder)
        window.present(gpu.submit(encoder))
        gpu.poll()
    window.close()
    window.close()
    assert window.begin() is None and window.actions() == []
    print("closed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
