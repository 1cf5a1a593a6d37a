"""A scene of plain colours, what is seen of it, and where: for tests of the renderer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import wgpu

from app.scene import panels as layout
from app.scene.hud import HudState, render_hud
from app.scene.renderer import FAR, NEAR, BufferRange, PanelSources, SceneRenderer
from app.scene.transforms import projection, view_matrix
from app.xr.driver import Fov, Pose, View
from app.xr.hands import Hand

SIZE = 256
ANGLE = math.radians(48)
FOV = Fov(-ANGLE, ANGLE, ANGLE, -ANGLE)
CAMERA_COLOUR = (200, 90, 30)
PAINTED_COLOUR = (40, 170, 220)
COMPONENTS_COLOUR = (120, 60, 190)


class Scene:
    """A renderer with network outputs of one colour each, at an offset in their buffers."""

    def __init__(self, device: wgpu.GPUDevice, samples: int = 4) -> None:
        self.device = device
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST
        self.painted = device.create_buffer(size=256 + 224 * 224 * 12, usage=usage)
        self.components = device.create_buffer(size=512 + 14 * 14 * 12, usage=usage)
        sources = PanelSources(
            BufferRange(self.painted, 256, 224 * 224 * 12),
            BufferRange(self.components, 512, 14 * 14 * 12),
        )
        self.renderer = SceneRenderer(device, (SIZE, SIZE), sources, samples=samples)
        self.reset()

    def reset(self) -> None:
        self.paint(np.full((224, 224, 3), PAINTED_COLOUR) / 255)
        self.compose(np.full((14, 14, 3), COMPONENTS_COLOUR) / 255)
        self.renderer.set_camera(np.full((224, 224, 3), CAMERA_COLOUR, np.uint8))
        self.renderer.set_hud(render_hud(HudState(period_ms=11.1)))
        self.renderer.hud_visible = True
        self.renderer.set_panels([panel.pose for panel in layout.MOVABLE])
        self.renderer.set_hands((Hand(), Hand()))
        self.renderer.set_visibility_masks(None, None)

    def paint(self, image: np.ndarray) -> None:
        self.device.queue.write_buffer(self.painted, 256, image.astype(np.float32))

    def compose(self, image: np.ndarray) -> None:
        self.device.queue.write_buffer(self.components, 512, image.astype(np.float32))

    def submit(self, views: tuple[View, View], after: Callable[[Any], None] | None = None) -> None:
        self.renderer.set_views(views)
        encoder = self.device.create_command_encoder()
        self.renderer.encode(encoder)
        if after:
            after(encoder)
        self.device.queue.submit([encoder.finish()])

    def draw(self, views: tuple[View, View] | None = None) -> np.ndarray:
        """Both eyes, [2, SIZE, SIZE, 3] as int."""
        self.submit(views or eyes())
        image = pixels(self.device, self.renderer.eyes)
        return image.reshape(SIZE, 2, SIZE, 4).swapaxes(0, 1)[..., :3]


def eyes(x: float = 0.0, y: float = 1.6, z: float = 0.0, apart: float = 0.064) -> tuple[View, View]:
    left, right = (View(Pose((x + side * apart / 2, y, z), (0, 0, 0, 1)), FOV) for side in (-1, 1))
    return left, right


def pixels(device: wgpu.GPUDevice, texture: wgpu.GPUTexture) -> np.ndarray:
    width, height = texture.size[:2]
    data = device.queue.read_texture(
        {"texture": texture}, {"bytes_per_row": width * 4}, (width, height, 1)
    )
    return np.frombuffer(data, np.uint8).reshape(height, width, 4).astype(int)


def pixel_of(view: View, panel: layout.Panel, u: float = 0.5, v: float = 0.5) -> tuple[int, int]:
    """Row and column at which a place on a panel (u right, v down, 0..1) is seen."""
    world = panel.model() @ np.array([u - 0.5, 0.5 - v, 0, 1], np.float32)
    clip = projection(view.fov, NEAR, FAR) @ view_matrix(view.pose) @ world
    x, y = clip[:2] / clip[3]
    return int((0.5 - 0.5 * y) * SIZE), int((0.5 + 0.5 * x) * SIZE)


def seen(image: np.ndarray, views: tuple[View, View], panel: int, **at: float) -> np.ndarray:
    """Colours of a place on a picture, [2, 3], one row per eye."""
    places = [pixel_of(view, layout.PICTURES[panel], **at) for view in views]
    return np.array([eye[place] for eye, place in zip(image, places, strict=True)])
