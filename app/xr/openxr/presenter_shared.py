"""The `shared` presenter: eye images stay on the graphics card.

The session's device makes images that Dawn imports. A frame's submission ends with a copy of the
eyes into one of them; the queue of the session's device copies from there into the swapchain image.
Fences go both ways, so that neither queue touches an image before the other has done with it, and
no byte passes through the host's memory.

As with the `host` presenter nothing waits: what the device has finished is presented, and a frame
whose image is not there yet shows the image before, with the pose that this one was rendered for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.xr.driver import XrError
from app.xr.openxr.newest import NewestImage
from app.xr.openxr.shared_fences import Fence, FenceKind, SharedFences
from app.xr.openxr.shared_images import Access, SharedImage, check_shareable
from app.xr.openxr.uploader import (
    LAYER,
    TARGET,
    Swapchain,
    Uploader,
    barrier,
    check_eyes,
    submit,
)
from app.xr.openxr.vulkan_device import VulkanDevice, vk
from engine.gpu import Gpu

if TYPE_CHECKING:
    import wgpu

SLOTS = 3
"""Images on their way at once: one being rendered, one finished, one being shown."""

SOURCE = vk.VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL


class _Slot:
    """One shared image: free, drawn into by Dawn, or waiting to be copied."""

    def __init__(
        self, gpu: Gpu, vulkan: VulkanDevice, kind: FenceKind, size: tuple[int, int]
    ) -> None:
        self.frame_id = 0
        self.serial: int | None = None
        """Submission that draws what the image holds; None: it is free."""
        self._vulkan = vulkan
        self._access: Access | None = None
        self._copied: Fence | None = None
        self._commands: list[Any] = []
        self._layouts = (0, 0)
        self.fences = SharedFences(vulkan, kind)
        try:
            self.image = SharedImage(gpu, vulkan, size)
        except BaseException:
            self.fences.close()
            raise

    def begin(self) -> None:
        """Let Dawn draw, once the copy of what the image held is done."""
        copied, self._copied = self._copied, None
        self.image.begin(copied)

    def end(self, serial: int) -> None:
        """The drawing went out with submission `serial`."""
        self._access = self.image.end()
        self.serial = serial

    def discard(self) -> None:
        """What was drawn is not wanted."""
        if self._access is not None:
            self._access.fence.close()
        self._access = self.serial = None

    def prepare(self, uploader: Uploader, copy: Callable[[Any, Any, Any], None]) -> None:
        """Record the copies into the swapchain's images, from what was just drawn."""
        assert self._access is not None
        self._layouts = self._access.layouts
        image, family = self.image.image, self._vulkan.family

        def fill(command: Any, target: Any) -> None:
            _acquire(command, image, self._layouts, family)
            copy(command, image, target)

        self._commands = uploader.commands(fill)
        self.discard()

    def copy(self, index: int) -> None:
        """Send what was drawn into the swapchain image `index`."""
        access = self._access
        assert access is not None
        if access.layouts != self._layouts:
            raise XrError("Dawn changed the layout of a shared image: use --presenter host")
        self._access = self.serial = None
        waits = [self.fences.drawn] if self.fences.take(access.fence) else []
        info = vk.VkSubmitInfo(
            pWaitSemaphores=waits,
            pWaitDstStageMask=[vk.VK_PIPELINE_STAGE_TRANSFER_BIT] * len(waits),
            pCommandBuffers=[self._commands[index]],
            pSignalSemaphores=[self.fences.copied],
        )
        submit(self._vulkan.queue, info)
        self._copied = self.fences.give()

    def close(self) -> None:
        """Free everything; the session's queue must be idle. Safe to call twice."""
        self.discard()
        if self._copied is not None:
            self._copied.close()
        self._copied = None
        self.image.close()
        self.fences.close()


class SharedPresenter(NewestImage[_Slot]):
    """A `Presenter` of `eyes` (rgba8unorm-srgb, both eyes side by side) into `swapchain`.

    Everything is created here, but for the handles of fences; waits for `gpu` once. Raises
    `XrError` when the devices cannot share images.
    """

    name = "shared"
    note = "eye images are shared with the headset's device"

    def __init__(
        self, gpu: Gpu, eyes: wgpu.GPUTexture, vulkan: VulkanDevice, swapchain: Swapchain
    ) -> None:
        check_eyes(eyes, swapchain)
        self._kind = check_shareable(gpu, vulkan)
        super().__init__(swapchain)
        self._gpu, self._vulkan = gpu, vulkan
        self._source = {"texture": eyes}
        self._size = (*swapchain.size, 1)
        self._uploader = Uploader(vulkan, swapchain)
        try:
            self._make_slots()
        except BaseException:
            self.close()
            raise

    def _make_slots(self) -> None:
        """Draw into every image once: only then Dawn tells the layout it leaves them in."""
        region = vk.VkImageCopy(LAYER, (0, 0, 0), LAYER, (0, 0, 0), self._size)

        def copy(command: Any, image: Any, target: Any) -> None:
            vk.vkCmdCopyImage(command, image, SOURCE, target, TARGET, 1, [region])

        for _ in range(SLOTS):
            slot = _Slot(self._gpu, self._vulkan, self._kind, self._swapchain.size)
            self._slots.append(slot)
            encoder = self._gpu.device.create_command_encoder()
            slot.begin()
            self._copy(encoder, slot)
            slot.end(self._gpu.submit(encoder))
            slot.prepare(self._uploader, copy)
        self._gpu.wait()

    def _copy(self, encoder: wgpu.GPUCommandEncoder, slot: _Slot) -> None:
        encoder.copy_texture_to_texture(self._source, {"texture": slot.image.texture}, self._size)

    def record(self, encoder: wgpu.GPUCommandEncoder, frame_id: int) -> None:
        """Copy the eyes into a free image; skipped when there is none."""
        slot = self._recorded
        if slot is None:
            # The one shown longest ago: its copy is done, and the renderer need not wait for it.
            free = [slot for slot in self._slots if slot.serial is None]
            if not free:
                self.skipped += 1
                return
            slot = min(free, key=lambda slot: slot.frame_id)
            slot.begin()
        slot.frame_id, self._recorded = frame_id, slot
        self._copy(encoder, slot)

    def submitted(self, serial: int) -> None:
        """Name the submission that carries the copy."""
        if self._recorded is not None:
            self._recorded.end(serial)
            self._recorded = None

    def ready(self, frame_id: int) -> bool:
        """Whether the frame's image is finished, or never will be; as of the last `Gpu.poll`."""
        return frame_id <= self._shown or all(
            self._arrived(slot) for slot in self._slots if slot.frame_id == frame_id
        )

    def _arrived(self, slot: _Slot) -> bool:
        return slot.serial is not None and slot.serial <= self._gpu.completed

    def _discard(self, slot: _Slot) -> None:
        slot.discard()

    def _put(self, slot: _Slot) -> bool:
        slot.copy(self._swapchain.acquire())
        return True

    @property
    def host_bytes(self) -> int:
        """0: nothing here is a buffer, and images are written by copies on the device only."""
        return 0

    def close(self) -> None:
        """Free images, fences and commands; waits for the session's queue. Safe to call twice."""
        self._uploader.close()
        for slot in self._slots:
            slot.close()
        self._slots, self._recorded = [], None


def _acquire(command: Any, image: Any, layouts: tuple[int, int], family: int) -> None:
    """Take `image` over from Dawn's device as that one left it, and make it a copy's source."""
    access = (0, vk.VK_ACCESS_TRANSFER_READ_BIT)
    stages = (vk.VK_PIPELINE_STAGE_TRANSFER_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT)
    barrier(command, image, layouts, access, stages, (vk.VK_QUEUE_FAMILY_EXTERNAL, family))
    barrier(command, image, (layouts[1], SOURCE), access, stages)
