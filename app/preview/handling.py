"""The wearer's hands in the scene: panels taken and carried, hands drawn, hidden pixels skipped."""

from __future__ import annotations

from app.scene.grab import PanelGrab
from app.scene.renderer import SceneRenderer
from app.xr.driver import FrameTiming, Vec3, View, XrDriver

Views = tuple[View, View]

STANDING: Vec3 = (0.0, 1.6, 0.0)
"""Where the head is taken to be before any view was located."""


class Handling:
    """Brings what the driver knows of the wearer into the scene, once a frame."""

    def __init__(self, scene: SceneRenderer) -> None:
        self._scene = scene
        self._grab = PanelGrab()

    def reset(self) -> None:
        """All panels back to their places."""
        self._grab.reset()

    def update(self, driver: XrDriver, timing: FrameTiming, views: Views | None) -> None:
        """Before a frame is drawn; `views` are those of the frame before."""
        masks = driver.new_visibility_masks()
        if masks is not None:
            self._scene.set_visibility_masks(*masks)
        hands = driver.hands(timing.predicted_display_ns)
        self._grab.update(hands, _head(views), hud_visible=self._scene.hud_visible)
        self._scene.set_panels(self._grab.poses, self._grab.highlights)
        self._scene.set_hands(hands, self._grab.rays)


def _head(views: Views | None) -> Vec3:
    """Between the eyes."""
    if views is None:
        return STANDING
    (lx, ly, lz), (rx, ry, rz) = (view.pose.position for view in views)
    return (lx + rx) / 2, (ly + ry) / 2, (lz + rz) / 2
