"""Shows the rendered eyes in a window or any other texture, letterboxed."""

from __future__ import annotations

from typing import Literal

import wgpu

from app.scene.shaders import load_shader

MirrorView = Literal["both", "left"]


class Mirror:
    """Copies the side-by-side eyes to targets of one format.

    `view` chooses what is shown and may change at any time: "both" eyes or only the "left" one.
    Raises `ValueError` for an unknown view when it is encoded.
    """

    def __init__(
        self,
        device: wgpu.GPUDevice,
        eyes_texture_view: wgpu.GPUTextureView,
        target_format: str,
        view: MirrorView = "both",
    ) -> None:
        self.view: MirrorView = view
        self._eyes_size = eyes_texture_view.texture.size[:2]
        module = device.create_shader_module(label="mirror", code=load_shader("mirror"))
        layout = device.create_bind_group_layout(
            entries=[
                {
                    "binding": 0,
                    "visibility": wgpu.ShaderStage.VERTEX | wgpu.ShaderStage.FRAGMENT,
                    "texture": {},
                },
                {"binding": 1, "visibility": wgpu.ShaderStage.FRAGMENT, "sampler": {}},
            ]
        )
        sampler = device.create_sampler(mag_filter="linear", min_filter="linear")
        self._group = device.create_bind_group(
            layout=layout,
            entries=[
                {"binding": 0, "resource": eyes_texture_view},
                {"binding": 1, "resource": sampler},
            ],
        )
        self._pipeline = device.create_render_pipeline(
            label="mirror",
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            vertex={"module": module, "entry_point": "mirror_vertex"},
            primitive={"topology": "triangle-list"},
            fragment={
                "module": module,
                "entry_point": "mirror_fragment",
                "constants": {"encode_srgb": not target_format.endswith("-srgb")},
                "targets": [{"format": target_format}],
            },
        )

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        target_size: tuple[int, int],
    ) -> None:
        """Record a pass that fills a target of `target_size` (width, height) pixels."""
        if self.view not in ("both", "left"):
            raise ValueError(f"mirror view must be 'both' or 'left', got {self.view!r}")
        left_only = self.view == "left"
        width, height = self._eyes_size
        area = letterbox((width // 2 if left_only else width, height), target_size)
        render = encoder.begin_render_pass(
            color_attachments=[
                {
                    "view": target_view,
                    "load_op": "clear",
                    "store_op": "store",
                    "clear_value": (0.0, 0.0, 0.0, 1.0),
                }
            ]
        )
        render.set_viewport(*area, 0, 1)
        render.set_pipeline(self._pipeline)
        render.set_bind_group(0, self._group)
        render.draw(3, 1, 0, int(left_only))
        render.end()


def letterbox(
    picture: tuple[int, int], target: tuple[int, int]
) -> tuple[float, float, float, float]:
    """The largest centred area (x, y, width, height) of `target` with the shape of `picture`."""
    scale = min(target[0] / picture[0], target[1] / picture[1])
    width, height = picture[0] * scale, picture[1] * scale
    return (target[0] - width) / 2, (target[1] - height) / 2, width, height
