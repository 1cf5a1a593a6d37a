"""What the eyes are drawn into."""

from __future__ import annotations

from typing import Any

import wgpu

from app.scene.pipelines import COLOUR_FORMAT, DEPTH_FORMAT


class EyeTargets:
    """Colour and depth of both eyes, side by side, `eye_size` (width, height) pixels each.

    `eyes` is the result, `samples` (1 or 4) are resolved into it. Raises `ValueError` for a size
    or a number of samples that the device cannot have.
    """

    def __init__(self, device: wgpu.GPUDevice, eye_size: tuple[int, int], samples: int) -> None:
        limit = device.limits["max-texture-dimension-2d"]
        if min(eye_size) < 1 or 2 * eye_size[0] > limit or eye_size[1] > limit:
            raise ValueError(f"eye size {eye_size} must be positive and fit {limit} pixels twice")
        if samples not in (1, 4):
            raise ValueError(f"samples must be 1 or 4, got {samples}")

        size = (2 * eye_size[0], eye_size[1], 1)
        usage = wgpu.TextureUsage
        self.eyes: wgpu.GPUTexture = device.create_texture(
            label="eyes",
            size=size,
            format=COLOUR_FORMAT,
            usage=usage.RENDER_ATTACHMENT | usage.TEXTURE_BINDING | usage.COPY_SRC,
        )
        self.eyes_view: wgpu.GPUTextureView = self.eyes.create_view()
        depth = device.create_texture(
            label="eyes depth",
            size=size,
            format=DEPTH_FORMAT,
            usage=usage.RENDER_ATTACHMENT,
            sample_count=samples,
        )
        colour = {
            "view": self.eyes_view,
            "load_op": "clear",
            "store_op": "store",
            "clear_value": (0.0, 0.0, 0.0, 1.0),
        }
        if samples > 1:
            many = device.create_texture(
                label="eyes multisampled",
                size=size,
                format=COLOUR_FORMAT,
                usage=usage.RENDER_ATTACHMENT,
                sample_count=samples,
            )
            colour |= {
                "view": many.create_view(),
                "resolve_target": self.eyes_view,
                "store_op": "discard",
            }
        self.attachments: dict[str, Any] = {
            "color_attachments": [colour],
            "depth_stencil_attachment": {
                "view": depth.create_view(),
                "depth_load_op": "clear",
                "depth_store_op": "discard",
                "depth_clear_value": 1.0,
            },
        }
        """Arguments of `begin_render_pass`: everything is cleared first."""
