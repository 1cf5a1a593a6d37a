"""What the parts of the scene share: the pass they are drawn in, and how they bind to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import wgpu

from app.scene.shaders import load_shader

COLOUR_FORMAT = wgpu.TextureFormat.rgba8unorm_srgb
DEPTH_FORMAT = wgpu.TextureFormat.depth32float

VERTEX, FRAGMENT = wgpu.ShaderStage.VERTEX, wgpu.ShaderStage.FRAGMENT
UNIFORM: Mapping[str, Any] = {"buffer": {"type": "uniform"}}
STORAGE: Mapping[str, Any] = {"buffer": {"type": "read-only-storage"}}
TEXTURE: Mapping[str, Any] = {"texture": {}}
SAMPLER: Mapping[str, Any] = {"sampler": {}}

_PREMULTIPLIED = {
    "operation": "add",
    "src_factor": "one",
    "dst_factor": "one-minus-src-alpha",
}


def bind_layout(
    device: wgpu.GPUDevice, *entries: tuple[int, Mapping[str, Any]]
) -> wgpu.GPUBindGroupLayout:
    """Bindings 0, 1, ...: which shader stages see each, and what it is."""
    return device.create_bind_group_layout(
        entries=[
            {"binding": binding, "visibility": visibility, **kind}
            for binding, (visibility, kind) in enumerate(entries)
        ]
    )


def bind_group(
    device: wgpu.GPUDevice, layout: wgpu.GPUBindGroupLayout, *resources: Any
) -> wgpu.GPUBindGroup:
    """The resources of bindings 0, 1, ..."""
    return device.create_bind_group(
        layout=layout,
        entries=[{"binding": at, "resource": part} for at, part in enumerate(resources)],
    )


@dataclass(frozen=True)
class ScenePass:
    """Makes the pipelines of the pass that draws the eyes. Group 0 of each is `eye_layout`."""

    device: wgpu.GPUDevice
    samples: int
    eye_layout: wgpu.GPUBindGroupLayout

    def shader(self, *names: str) -> wgpu.GPUShaderModule:
        """A module joined from WGSL files; see `load_shader`."""
        return self.device.create_shader_module(label=names[-1], code=load_shader(*names))

    def pipeline(
        self,
        code: wgpu.GPUShaderModule,
        vertex: str,
        fragment: str,
        *layouts: wgpu.GPUBindGroupLayout,
        constants: Mapping[str, float] | None = None,
        buffers: Sequence[Mapping[str, Any]] = (),
        writes_depth: bool = False,
        writes_colour: bool = True,
    ) -> wgpu.GPURenderPipeline:
        """Triangles, nearest first; colours are blended, with premultiplied alpha.

        `layouts` are those of groups 1, 2, ...
        """
        everywhere = dict(constants or {})
        mask = wgpu.ColorWrite.ALL if writes_colour else 0
        return self.device.create_render_pipeline(
            label=fragment,
            layout=self.device.create_pipeline_layout(
                bind_group_layouts=[self.eye_layout, *layouts]
            ),
            vertex={
                "module": code,
                "entry_point": vertex,
                "constants": everywhere,
                "buffers": list(buffers),
            },
            primitive={"topology": "triangle-list", "cull_mode": "none"},
            depth_stencil={
                "format": DEPTH_FORMAT,
                "depth_write_enabled": writes_depth,
                "depth_compare": "less-equal",
            },
            multisample={"count": self.samples},
            fragment={
                "module": code,
                "entry_point": fragment,
                "constants": everywhere,
                "targets": [
                    {
                        "format": COLOUR_FORMAT,
                        "blend": {"color": _PREMULTIPLIED, "alpha": _PREMULTIPLIED},
                        "write_mask": mask,
                    }
                ],
            },
        )
