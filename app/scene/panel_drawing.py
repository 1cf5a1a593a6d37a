"""Draws the panels: pictures with their captions, and the HUD, from far to near."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import wgpu
from numpy.typing import NDArray

from app.scene import panels as layout
from app.scene.pipelines import FRAGMENT, SAMPLER, TEXTURE, ScenePass, bind_group, bind_layout
from app.scene.text import caption_image
from app.scene.textures import PictureTexture
from app.xr.driver import Pose, Vec3

CAPTION_PIXELS = (768, 115)
CAPTION_COLOUR = (226, 234, 246)
CAPTION_DIM = (132, 148, 172)

_PICTURES = len(layout.PICTURES)
_HUD_ROW = 2 * _PICTURES  # of the shaders' array: pictures, captions, HUD


class PanelDrawing:
    """The panels' images, and how they are drawn. `buffer` is group 0's array of panels.

    Group 1 of the pictures' pipelines is `sources_layout`, and of its shaders' sizes `constants`.
    """

    def __init__(
        self,
        scene: ScenePass,
        buffer: wgpu.GPUBuffer,
        sources_layout: wgpu.GPUBindGroupLayout,
        sources_group: wgpu.GPUBindGroup,
        sampler: wgpu.GPUSampler,
        constants: dict[str, float],
        hud_size: tuple[int, int],
    ) -> None:
        device = scene.device
        self._queue, self._buffer = device.queue, buffer
        self._sources = sources_group
        self._poses: tuple[Pose, ...] = ()
        self._highlights: tuple[float, ...] = ()
        self.place([panel.pose for panel in layout.MOVABLE], (0.0,) * len(layout.MOVABLE))

        captions = [PictureTexture(device, CAPTION_PIXELS, 5, "caption") for _ in layout.CAPTIONS]
        for texture, caption in zip(captions, layout.CAPTIONS, strict=True):
            texture.write(
                caption_image(
                    caption.title, caption.subtitle, CAPTION_PIXELS, CAPTION_COLOUR, CAPTION_DIM
                )
            )
        self._hud = PictureTexture(device, hud_size, 5, "HUD image")
        label_layout = bind_layout(device, (FRAGMENT, TEXTURE), (FRAGMENT, SAMPLER))
        self._labels = [
            bind_group(device, label_layout, label.view, sampler)
            for label in (*captions, self._hud)
        ]

        picture = scene.shader("eye", "sources", "picture")
        self._halo = scene.pipeline(
            picture, "halo_vertex", "halo_fragment", sources_layout, constants=constants
        )
        self._pictures = [
            scene.pipeline(
                picture,
                "picture_vertex",
                f"{name}_fragment",
                sources_layout,
                constants=constants,
                writes_depth=True,
            )
            for name in ("camera", "painted", "components")
        ]
        label = scene.shader("eye", "label")
        self._label = scene.pipeline(label, "label_vertex", "label_fragment", label_layout)
        outline = scene.shader("eye", "outline")
        self._outline = scene.pipeline(outline, "outline_vertex", "outline_fragment")

    def place(self, poses: Sequence[Pose], highlights: Sequence[float]) -> None:
        """Move the `MOVABLE` panels: see `SceneRenderer.set_panels`."""
        wanted = tuple(poses), tuple(highlights)
        if wanted != (self._poses, self._highlights):
            self._queue.write_buffer(self._buffer, 0, layout.uniforms(*wanted))
            self._poses, self._highlights = wanted

    def set_hud(self, rgba: NDArray[np.uint8]) -> None:
        """Replace the HUD's image."""
        self._hud.write(rgba)

    def far_to_near(self, head: Vec3) -> list[int]:
        """The `MOVABLE` panels in the order to draw them in: glass and round corners blend."""

        def distance(panel: int) -> float:
            return math.dist(self._poses[panel].position, head)

        return sorted(range(len(self._poses)), key=distance, reverse=True)

    def draw(
        self, render: wgpu.GPURenderPassEncoder, order: Sequence[int], hud_visible: bool
    ) -> None:
        """Record all panels; groups 0 and 1 are bound."""
        render.set_pipeline(self._halo)
        render.draw(6, _PICTURES)
        for panel in order:
            if panel == layout.HUD_INDEX:
                if hud_visible:
                    self._draw_outline(render, panel, _HUD_ROW)
                    self._draw_label(render, _HUD_ROW)
                continue
            self._draw_outline(render, panel, panel)
            render.set_pipeline(self._pictures[panel])
            render.set_bind_group(1, self._sources)
            render.draw(6, 1, 0, panel)
            self._draw_label(render, _PICTURES + panel)

    def _draw_outline(self, render: wgpu.GPURenderPassEncoder, panel: int, row: int) -> None:
        if self._highlights[panel] > 0:
            render.set_pipeline(self._outline)
            render.draw(6, 1, 0, row)

    def _draw_label(self, render: wgpu.GPURenderPassEncoder, row: int) -> None:
        render.set_pipeline(self._label)
        render.set_bind_group(1, self._labels[row - _PICTURES])
        render.draw(6, 1, 0, row)
