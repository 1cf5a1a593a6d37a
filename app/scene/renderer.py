"""The stereo room: one render pass draws both eyes side by side into one texture.

Everything is created by `SceneRenderer.__init__`; afterwards a frame only writes and encodes.
Light is linear in the shaders and sRGB in the textures. Order of drawing: what need not be shaded,
hands, room, halos, panels from far to near.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from app.scene import panels as layout
from app.scene.hand_marks import HandMarks
from app.scene.hidden_area import HiddenArea, HiddenTriangles
from app.scene.load import MAX_LOAD
from app.scene.panel_drawing import PanelDrawing
from app.scene.pipelines import (
    FRAGMENT,
    SAMPLER,
    STORAGE,
    TEXTURE,
    UNIFORM,
    VERTEX,
    ScenePass,
    bind_group,
    bind_layout,
)
from app.scene.sources import BufferRange, PanelSources
from app.scene.targets import EyeTargets
from app.scene.textures import PictureTexture
from app.scene.transforms import projection, view_matrix, view_rays
from app.xr.driver import Pose, Vec3, View
from app.xr.hands import Hand

NEAR, FAR = 0.05, 100.0
EYE_STRIDE = 256  # the default alignment of a uniform binding's offset
EYE_BYTES = 144
STANDING: Vec3 = (0.0, 1.6, 0.0)


class SceneRenderer:
    """Draws the room for two eyes of `eye_size` (width, height) pixels.

    `eyes` is the result: `rgba8unorm-srgb`, left eye in the left half, right eye in the right.
    `hud_visible` and `load` may be changed at any time, and hands, panels and masks between frames:
    what `encode` records depends on them. `samples` is 1 or 4.
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
        targets = EyeTargets(device, eye_size, samples)
        panels.validate(device.limits["min-storage-buffer-offset-alignment"])
        self.eye_size = eye_size
        self.eyes: wgpu.GPUTexture = targets.eyes
        self.eyes_view: wgpu.GPUTextureView = targets.eyes_view
        self.hud_visible = True
        self._load = 0
        self._head = STANDING
        self._attachments = targets.attachments
        self._queue = device.queue

        both = VERTEX | FRAGMENT
        scene = ScenePass(device, samples, bind_layout(device, (both, UNIFORM), (both, UNIFORM)))
        self._create_eye_groups(scene)
        self._hidden = HiddenArea(scene)
        self._hands = HandMarks(scene)
        self._create_room_and_panels(scene, panels, hud_size)

    def _create_eye_groups(self, scene: ScenePass) -> None:
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        create = scene.device.create_buffer
        self._eye_buffer = create(label="eye uniforms", size=2 * EYE_STRIDE, usage=usage)
        self._panel_buffer = create(label="panels", size=layout.UNIFORM_BYTES, usage=usage)
        self._eye_groups = [
            bind_group(
                scene.device,
                scene.eye_layout,
                BufferRange(self._eye_buffer, eye * EYE_STRIDE, EYE_BYTES).binding(),
                BufferRange(self._panel_buffer, 0, layout.UNIFORM_BYTES).binding(),
            )
            for eye in (0, 1)
        ]

    def _create_room_and_panels(
        self, scene: ScenePass, sources: PanelSources, hud_size: tuple[int, int]
    ) -> None:
        device, both = scene.device, VERTEX | FRAGMENT
        smooth = device.create_sampler(
            mag_filter="linear", min_filter="linear", mipmap_filter="linear"
        )
        sources_layout = bind_layout(
            device, (both, TEXTURE), (both, SAMPLER), (both, STORAGE), (both, STORAGE)
        )
        side = sources.image_size
        self._camera = PictureTexture(device, (side, side), 16, "camera image")
        self._sources_group = bind_group(
            device,
            sources_layout,
            self._camera.view,
            smooth,
            sources.painted.binding(),
            sources.components.binding(),
        )
        sizes: dict[str, float] = {"image_size": side, "grid": sources.grid}
        self._room = scene.pipeline(
            scene.shader("eye", "sources", "haze", "room"),
            "room_vertex",
            "room_fragment",
            sources_layout,
            constants=sizes,
        )
        self._panels = PanelDrawing(
            scene,
            self._panel_buffer,
            sources_layout,
            self._sources_group,
            smooth,
            sizes,
            hud_size,
        )

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
        self._panels.set_hud(rgba)

    def set_panels(self, poses: Sequence[Pose], highlights: Sequence[float] = (0.0,) * 4) -> None:
        """Hang camera, painted, components and HUD at these poses; captions follow.

        `highlights`, 0 (none) to 1 (held), is the strength of a line of light around each. Writes
        560 bytes, and only after a change. Raises `ValueError` unless there are four of each.
        """
        self._panels.place(poses, highlights)

    def set_hands(self, hands: Sequence[Hand], rays: Sequence[float | None] = (None, None)) -> None:
        """Show the tracked ones of the left and right hand, each with a ray along its aim.

        `rays`: metres to what a ray meets; None: nothing, 0: no ray. Raises `ValueError` unless
        there are two of each.
        """
        self._hands.set(hands, rays)

    def set_visibility_masks(
        self, left: HiddenTriangles | None, right: HiddenTriangles | None
    ) -> None:
        """Leave hidden pixels of the eyes black and unshaded; None hides none.

        The triangles are placed by the field of view that `set_views` gets. Creates nothing, so it
        may be called whenever the masks change. Raises `ValueError` for what are no triangles.
        """
        self._hidden.set(left, right)

    def set_views(self, views: Sequence[View]) -> None:
        """Place the left and right eye: call it last, just before the submission."""
        if len(views) != 2:
            raise ValueError(f"the scene draws 2 views, got {len(views)}")
        uniforms = np.zeros((2, EYE_STRIDE // 4), np.float32)
        for eye, view in zip(uniforms, views, strict=True):
            to_clip = projection(view.fov, NEAR, FAR)
            eye[:16] = (to_clip @ view_matrix(view.pose)).T.ravel()
            eye[16:28].reshape(3, 4)[:, :3] = view_rays(view.pose, view.fov).T
            eye[28:31] = view.pose.position
            eye[31] = self._load
            eye[32:36] = to_clip[0, 0], to_clip[1, 1], -to_clip[0, 2], -to_clip[1, 2]
        self._queue.write_buffer(self._eye_buffer, 0, uniforms)
        self._head = views[0].pose.position

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, timestamp_writes: dict[str, Any] | None = None
    ) -> None:
        """Record the pass that draws both eyes; `timestamp_writes` as in `begin_render_pass`."""
        width, height = self.eye_size
        # The views of this frame come later; the last ones sort the panels as well.
        order = self._panels.far_to_near(self._head)
        render = encoder.begin_render_pass(**self._attachments, timestamp_writes=timestamp_writes)
        for eye, eye_group in enumerate(self._eye_groups):
            render.set_viewport(eye * width, 0, width, height, 0, 1)
            render.set_scissor_rect(eye * width, 0, width, height)
            render.set_bind_group(0, eye_group)
            self._hidden.draw(render, eye)
            self._hands.draw(render)
            render.set_bind_group(1, self._sources_group)
            render.set_pipeline(self._room)
            render.draw(3)
            self._panels.draw(render, order, self.hud_visible)
        render.end()
