"""Copies images into swapchain images on the session's queue, without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from app.xr.driver import XrError, XrLost
from app.xr.openxr.vulkan_device import VulkanDevice, vk

if TYPE_CHECKING:
    import wgpu

TEXEL_BYTES = 4
TARGET = vk.VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL
"""Layout of a swapchain image while it is written."""

_WHOLE = {"aspectMask": vk.VK_IMAGE_ASPECT_COLOR_BIT, "baseArrayLayer": 0, "layerCount": 1}
LAYER = vk.VkImageSubresourceLayers(mipLevel=0, **_WHOLE)
"""The only layer and level of an image."""


class Swapchain(Protocol):
    """Images to be filled in turn: the runtime's, or what stands in for them."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels: both eyes side by side."""

    @property
    def images(self) -> Sequence[int]:
        """Addresses of the VkImages."""

    def acquire(self) -> int:
        """Index of the image to write next."""

    def release(self) -> None:
        """Hand the acquired image over; what writes it has been submitted."""


class Upload:
    """The way from one buffer into any image of the swapchain: recorded once, submitted often."""

    def __init__(self, queue: Any, device: Any, commands: list[Any]) -> None:
        self._queue, self._device, self._commands = queue, device, commands
        self._fence = vk.vkCreateFence(device, vk.VkFenceCreateInfo(), None)
        self._submitted = False

    @property
    def busy(self) -> bool:
        """Whether the queue may still read the buffer."""
        if self._submitted:
            try:
                vk.vkGetFenceStatus(self._device, self._fence)
            except vk.VkNotReady:
                return True
            vk.vkResetFences(self._device, 1, [self._fence])
            self._submitted = False
        return False

    def submit(self, image: int) -> None:
        """Copy the buffer, which must not be busy, into the image of that index."""
        info = vk.VkSubmitInfo(pCommandBuffers=[self._commands[image]])
        submit(self._queue, info, self._fence)
        self._submitted = True

    def close(self) -> None:
        """Free the fence; the queue must be idle."""
        vk.vkDestroyFence(self._device, self._fence, None)


class Uploader:
    """Records what writes the images of `swapchain`, once."""

    def __init__(self, vulkan: VulkanDevice, swapchain: Swapchain) -> None:
        self._vulkan = vulkan
        self._images = [vk.ffi.cast("VkImage", image) for image in swapchain.images]
        self._size = swapchain.size
        info = vk.VkCommandPoolCreateInfo(queueFamilyIndex=vulkan.family)
        self._pool = vk.vkCreateCommandPool(vulkan.device, info, None)
        self._uploads: list[Upload] = []

    def upload(self, buffer: Any, row_bytes: int, offset: int = 0) -> Upload:
        """The way into any image from a VkBuffer: from byte `offset` on, rows `row_bytes` apart."""
        region = vk.VkBufferImageCopy(
            bufferOffset=offset,
            bufferRowLength=row_bytes // TEXEL_BYTES,
            bufferImageHeight=0,
            imageSubresource=LAYER,
            imageOffset=(0, 0, 0),
            imageExtent=(*self._size, 1),
        )

        def fill(command: Any, image: Any) -> None:
            vk.vkCmdCopyBufferToImage(command, buffer, image, TARGET, 1, [region])

        upload = Upload(self._vulkan.queue, self._vulkan.device, self.commands(fill))
        self._uploads.append(upload)
        return upload

    def commands(self, fill: Callable[[Any, Any], None]) -> list[Any]:
        """A command buffer for each image: `fill` records what writes the whole of one.

        It gets the command buffer and the VkImage, whose layout is `TARGET` then.
        """
        commands = vk.vkAllocateCommandBuffers(
            self._vulkan.device,
            vk.VkCommandBufferAllocateInfo(
                commandPool=self._pool,
                level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=len(self._images),
            ),
        )
        made = [commands[i] for i in range(len(self._images))]
        for command, image in zip(made, self._images, strict=True):
            vk.vkBeginCommandBuffer(command, vk.VkCommandBufferBeginInfo())
            self._record(command, image, fill)
            vk.vkEndCommandBuffer(command)
        return made

    def _record(self, command: Any, image: Any, fill: Callable[[Any, Any], None]) -> None:
        # The runtime hands images over, and takes them back, as colour attachments. What they
        # held is not needed, so their old layout may be taken as undefined.
        barrier(
            command,
            image,
            (vk.VK_IMAGE_LAYOUT_UNDEFINED, TARGET),
            (0, vk.VK_ACCESS_TRANSFER_WRITE_BIT),
            (vk.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT),
        )
        fill(command, image)
        barrier(
            command,
            image,
            (TARGET, vk.VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL),
            (vk.VK_ACCESS_TRANSFER_WRITE_BIT, vk.VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT),
            (
                vk.VK_PIPELINE_STAGE_TRANSFER_BIT,
                vk.VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
            ),
        )

    def close(self) -> None:
        """Free everything; waits for the queue. Safe to call twice."""
        if self._pool is not None:
            self._vulkan.wait_idle()
            for upload in self._uploads:
                upload.close()
            vk.vkDestroyCommandPool(self._vulkan.device, self._pool, None)
        self._pool, self._uploads = None, []


def check_eyes(eyes: wgpu.GPUTexture, swapchain: Swapchain) -> None:
    """Raise `XrError` unless the texture's bytes are the swapchain's."""
    width, height = swapchain.size
    if tuple(eyes.size[:2]) != (width, height) or eyes.format != "rgba8unorm-srgb":
        raise XrError(
            f"the swapchain takes rgba8unorm-srgb of {width}x{height}, the eyes are "
            f"{eyes.format} of {eyes.size[0]}x{eyes.size[1]}"
        )


def submit(queue: Any, info: Any, fence: Any = vk.ffi.NULL) -> None:
    """VkQueueSubmit. Raises `XrLost` when the device is lost."""
    try:
        vk.vkQueueSubmit(queue, 1, [info], fence)
    except vk.VkErrorDeviceLost as error:
        raise XrLost("the headset's graphics device was lost: start again") from error


def barrier(
    command: Any,
    image: Any,
    layouts: tuple[int, int],
    access: tuple[int, int],
    stages: tuple[int, int],
    families: tuple[int, int] = (vk.VK_QUEUE_FAMILY_IGNORED, vk.VK_QUEUE_FAMILY_IGNORED),
) -> None:
    """Record a barrier of a whole image; each pair is what was and what will be."""
    change = vk.VkImageMemoryBarrier(
        srcAccessMask=access[0],
        dstAccessMask=access[1],
        oldLayout=layouts[0],
        newLayout=layouts[1],
        srcQueueFamilyIndex=families[0],
        dstQueueFamilyIndex=families[1],
        image=image,
        subresourceRange=vk.VkImageSubresourceRange(baseMipLevel=0, levelCount=1, **_WHOLE),
    )
    vk.vkCmdPipelineBarrier(command, *stages, 0, 0, None, 0, None, 1, [change])
