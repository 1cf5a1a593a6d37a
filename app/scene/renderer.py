"""The stereo room: one render pass draws both eyes side by side into one texture.

Everything is created by `SceneRenderer.__init__`; afterwards a frame only writes and encodes.
Light is linear in the shaders and sRGB in the textures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from app.scene import panels as layout
from app.scene.load import MAX_LOAD
from app.scene.shaders import load_shader
from app.scene.sources import BufferRange, PanelSources
from app.scene.text import caption_image
from app.scene.textures import PictureTexture
from app.scene.transforms import projection, view_matrix, view_rays
from app.xr.driver import View

COLOUR_FORMAT = wgpu.TextureFormat.rgba8unorm_srgb
DEPTH_FORMAT = wgpu.TextureFormat.depth32float
NEAR, FAR = 0.05, 100.0
EYE_STRIDE = 256  # the default alignment of a uniform binding's offset
EYE_BYTES = 128
CAPTION_PIXELS = (768, 115)
CAPTION_COLOUR = (226, 234, 246)
CAPTION_DIM = (132, 148, 172)

_PREMULTIPLIED = {
    "operation": "add",
    "src_factor": "one",
    "dst_factor": "one-minus-src-alpha",
}


class SceneRenderer:
    """Draws the room for two eyes of `eye_size` (width, height) pixels.

    `eyes` is the result: `rgba8unorm-srgb`, left eye in the left half, right eye in the right.
    `hud_visible` and `load` may be changed at any time. `samples` is 1 or 4.
    """

    def __init__(
        self,
        device: wgpu.GPUDevice,
        eye_size: tuple[int, int],
        panels: PanelSources,
        *,
        samples: int = 4,
        hud_size: tuple[int, int] = (1280, 400),
    ) -> None:
        limit = device.limits["max-texture-dimension-2d"]
        if min(eye_size) < 1 or 2 * eye_size[0] > limit or eye_size[1] > limit:
            raise ValueError(f"eye size {eye_size} must be positive and fit {limit} pixels twice")
        if samples not in (1, 4):
            raise ValueError(f"samples must be 1 or 4, got {samples}")
        panels.validate(device.limits["min-storage-buffer-offset-alignment"])

        self.eye_size = eye_size
        self.hud_visible = True
        self._load = 0
        self._device = device
        self._samples = samples
        self._create_targets()
        self._create_groups(panels, hud_size)
        self._create_pipelines(panels)

    def _create_targets(self) -> None:
        size = (2 * self.eye_size[0], self.eye_size[1], 1)
        usage = wgpu.TextureUsage
        create = self._device.create_texture
        self.eyes: wgpu.GPUTexture = create(
            label="eyes",
            size=size,
            format=COLOUR_FORMAT,
            usage=usage.RENDER_ATTACHMENT | usage.TEXTURE_BINDING | usage.COPY_SRC,
        )
        self.eyes_view: wgpu.GPUTextureView = self.eyes.create_view()
        depth = create(
            label="eyes depth",
            size=size,
            format=DEPTH_FORMAT,
            usage=usage.RENDER_ATTACHMENT,
            sample_count=self._samples,
        )
        colour = {
            "view": self.eyes_view,
            "load_op": "clear",
            "store_op": "store",
            "clear_value": (0.0, 0.0, 0.0, 1.0),
        }
        if self._samples > 1:
            many = create(
                label="eyes multisampled",
                size=size,
                format=COLOUR_FORMAT,
                usage=usage.RENDER_ATTACHMENT,
                sample_count=self._samples,
            )
            colour |= {
                "view": many.create_view(),
                "resolve_target": self.eyes_view,
                "store_op": "discard",
            }
        self._attachments: dict[str, Any] = {
            "color_attachments": [colour],
            "depth_stencil_attachment": {
                "view": depth.create_view(),
                "depth_load_op": "clear",
                "depth_store_op": "discard",
                "depth_clear_value": 1.0,
            },
        }

    def _create_groups(self, sources: PanelSources, hud_size: tuple[int, int]) -> None:
        device = self._device
        vertex, fragment = wgpu.ShaderStage.VERTEX, wgpu.ShaderStage.FRAGMENT
        both = vertex | fragment

        def layout_of(*entries: tuple[int, dict[str, Any]]) -> wgpu.GPUBindGroupLayout:
            return device.create_bind_group_layout(
                entries=[
                    {"binding": binding, "visibility": visibility, **kind}
                    for binding, (visibility, kind) in enumerate(entries)
                ]
            )

        def group(bind_layout: wgpu.GPUBindGroupLayout, *what: Any) -> wgpu.GPUBindGroup:
            return device.create_bind_group(
                layout=bind_layout,
                entries=[{"binding": at, "resource": part} for at, part in enumerate(what)],
            )

        uniform = {"buffer": {"type": "uniform"}}
        storage = {"buffer": {"type": "read-only-storage"}}
        texture: dict[str, Any] = {"texture": {}}
        sampler: dict[str, Any] = {"sampler": {}}
        self._eye_layout = layout_of((both, uniform), (both, uniform))
        self._sources_layout = layout_of(
            (both, texture), (both, sampler), (both, storage), (both, storage)
        )
        self._label_layout = layout_of((fragment, texture), (fragment, sampler))

        smooth = device.create_sampler(
            mag_filter="linear", min_filter="linear", mipmap_filter="linear"
        )
        self._eye_buffer = device.create_buffer(
            label="eye uniforms",
            size=2 * EYE_STRIDE,
            usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST,
        )
        panel_buffer = device.create_buffer_with_data(
            label="panels", data=layout.uniforms(), usage=wgpu.BufferUsage.UNIFORM
        )
        self._eye_groups = [
            group(
                self._eye_layout,
                BufferRange(self._eye_buffer, eye * EYE_STRIDE, EYE_BYTES).binding(),
                BufferRange(panel_buffer, 0, panel_buffer.size).binding(),
            )
            for eye in (0, 1)
        ]

        side = sources.image_size
        self._camera = PictureTexture(device, (side, side), 16, "camera image")
        self._sources_group = group(
            self._sources_layout,
            self._camera.view,
            smooth,
            sources.painted.binding(),
            sources.components.binding(),
        )

        captions = [PictureTexture(device, CAPTION_PIXELS, 5, "caption") for _ in layout.CAPTIONS]
        for texture_of, caption in zip(captions, layout.CAPTIONS, strict=True):
            texture_of.write(
                caption_image(
                    caption.title, caption.subtitle, CAPTION_PIXELS, CAPTION_COLOUR, CAPTION_DIM
                )
            )
        self._hud = PictureTexture(device, hud_size, 5, "HUD image")
        self._label_groups = [
            group(self._label_layout, label.view, smooth) for label in (*captions, self._hud)
        ]

    def _create_pipelines(self, sources: PanelSources) -> None:
        device = self._device
        sizes = {"image_size": sources.image_size, "grid": sources.grid}

        def module(*names: str) -> wgpu.GPUShaderModule:
            return device.create_shader_module(label=names[-1], code=load_shader(*names))

        def pipeline(
            code: wgpu.GPUShaderModule, vertex: str, fragment: str, writes_depth: bool = False
        ) -> wgpu.GPURenderPipeline:
            is_label = code is label
            group_1 = self._label_layout if is_label else self._sources_layout
            constants = {} if is_label else sizes
            return device.create_render_pipeline(
                label=fragment,
                layout=device.create_pipeline_layout(
                    bind_group_layouts=[self._eye_layout, group_1]
                ),
                vertex={"module": code, "entry_point": vertex, "constants": constants},
                primitive={"topology": "triangle-list", "cull_mode": "none"},
                depth_stencil={
                    "format": DEPTH_FORMAT,
                    "depth_write_enabled": writes_depth,
                    "depth_compare": "less-equal",
                },
                multisample={"count": self._samples},
                fragment={
                    "module": code,
                    "entry_point": fragment,
                    "constants": constants,
                    "targets": [
                        {
                            "format": COLOUR_FORMAT,
                            "blend": {"color": _PREMULTIPLIED, "alpha": _PREMULTIPLIED},
                        }
                    ],
                },
            )

        room = module("eye", "sources", "haze", "room")
        picture = module("eye", "sources", "picture")
        label = module("eye", "label")
        self._room = pipeline(room, "room_vertex", "room_fragment")
        self._halo = pipeline(picture, "halo_vertex", "halo_fragment")
        self._pictures = [
            pipeline(picture, "picture_vertex", f"{name}_fragment", writes_depth=True)
            for name in ("camera", "painted", "components")
        ]
        self._label = pipeline(label, "label_vertex", "label_fragment")

    @property
    def load(self) -> int:
        """Extra light samples per pixel of the room, 0 to `MAX_LOAD`: the scene made dearer.

        They light a haze, grainy below 16 samples and alike for any more; 0 leaves it out. GPU time
        rises linearly. A change holds from the next `set_views`. A pass that takes too long is
        taken for a hang and costs the device (Windows: after 2 s), so raise the load by
        measurement, as `calibrate_load` does. Raises `ValueError` for an impossible load.
        """
        return self._load

    @load.setter
    def load(self, samples: int) -> None:
        if not 0 <= samples <= MAX_LOAD:
            raise ValueError(f"the load must be 0 to {MAX_LOAD} samples per pixel, got {samples}")
        self._load = samples

    def set_camera(self, image: NDArray[np.uint8]) -> None:
        """Show a camera image, uint8 [image_size, image_size, 3], sRGB. Raises `ValueError`."""
        if image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"a camera image is [H, W, 3], got {list(image.shape)}")
        self._camera.write(np.dstack((image, np.full(image.shape[:2], 255, image.dtype))))

    def set_hud(self, rgba: NDArray[np.uint8]) -> None:
        """Show a HUD image, uint8 [H, W, 4] of the HUD's size, straight alpha, sRGB."""
        self._hud.write(rgba)

    def set_views(self, views: Sequence[View]) -> None:
        """Place the left and right eye: call it last, just before the submission."""
        if len(views) != 2:
            raise ValueError(f"the scene draws 2 views, got {len(views)}")
        uniforms = np.zeros((2, EYE_STRIDE // 4), np.float32)
        for eye, view in zip(uniforms, views, strict=True):
            eye[:16] = (projection(view.fov, NEAR, FAR) @ view_matrix(view.pose)).T.ravel()
            eye[16:28].reshape(3, 4)[:, :3] = view_rays(view.pose, view.fov).T
            eye[28:31] = view.pose.position
            eye[31] = self._load
        self._device.queue.write_buffer(self._eye_buffer, 0, uniforms)

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, timestamp_writes: dict[str, Any] | None = None
    ) -> None:
        """Record the pass that draws both eyes; `timestamp_writes` as in `begin_render_pass`."""
        width, height = self.eye_size
        render = encoder.begin_render_pass(**self._attachments, timestamp_writes=timestamp_writes)
        for eye, eye_group in enumerate(self._eye_groups):
            render.set_viewport(eye * width, 0, width, height, 0, 1)
            render.set_scissor_rect(eye * width, 0, width, height)
            render.set_bind_group(0, eye_group)
            render.set_bind_group(1, self._sources_group)
            render.set_pipeline(self._room)
            render.draw(3)
            render.set_pipeline(self._halo)
            render.draw(6, len(self._pictures))
            for panel, picture in enumerate(self._pictures):
                render.set_pipeline(picture)
                render.draw(6, 1, 0, panel)
            render.set_pipeline(self._label)
            labels = self._label_groups if self.hud_visible else self._label_groups[:-1]
            for panel, label in enumerate(labels, start=len(self._pictures)):
                render.set_bind_group(1, label)
                render.draw(6, 1, 0, panel)
        render.end()
