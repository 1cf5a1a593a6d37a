"""How eye images reach the headset: what the frame loop and the driver ask of a presenter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import wgpu

PresenterChoice = Literal["auto", "host", "shared"]
"""shared: without the host's memory where the devices can, else host. auto: what costs less, host
where the session's device reads the renderer's pages; else as shared, but host on a CPU device."""


@dataclass(frozen=True)
class Presented:
    """What one frame handed to the compositor.

    `image_id` is the frame whose eye images it showed, 0 when there was none yet; `presenter_ms`
    is the time that handing them over took on the calling thread; `host_bytes` were written to the
    host's memory for that since the frame before.
    """

    frame_id: int
    image_id: int
    presenter_ms: float
    host_bytes: int = 0

    @property
    def image_age(self) -> int:
        """Frames between the image and the frame that carried it; 0: its own."""
        return self.frame_id - self.image_id if self.image_id else 0


class Presenter(Protocol):
    """Brings finished eye images from the renderer's device to the runtime's swapchain.

    The frame loop calls `record` and `submitted` around a frame's submission; the driver asks for
    the rest when the frame is to be ended. All on the thread of the renderer's queue.
    """

    name: str
    note: str
    """How the images go and, where that is not the best way, why; one line."""

    def record(self, encoder: wgpu.GPUCommandEncoder, frame_id: int) -> None:
        """Record what must follow the eye images in the same submission."""

    def submitted(self, serial: int) -> None:
        """Name the submission that carries what was recorded."""

    def ready(self, frame_id: int) -> bool:
        """Whether nothing is gained by waiting: the frame's image is there, or never comes."""

    def present(self) -> int:
        """Put the newest finished image into the swapchain; never waits for the renderer.

        Returns the frame whose image the swapchain now shows, 0 when there was none yet.
        """

    @property
    def cost_ns(self) -> int:
        """What `present` takes of late, ns: images must be finished so much earlier."""

    @property
    def host_bytes(self) -> int:
        """Bytes of eye images written to the host's memory so far, by a device or the host."""

    def close(self) -> None:
        """Free what the presenter made; safe to call twice."""
