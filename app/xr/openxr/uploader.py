"""Copies image bytes from buffers into swapchain images on the session's queue, without waiting."""

from __future__ import annotations

from typing import Any

from app.xr.driver import XrLost
from app.xr.openxr.swapchain import EyeSwapchain
from app.xr.openxr.vulkan_device import VulkanDevice, vk

TEXEL_BYTES = 4
_WHOLE = {"aspectMask": vk.VK_IMAGE_ASPECT_COLOR_BIT, "baseArrayLayer": 0, "layerCount": 1}


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
        try:
            vk.vkQueueSubmit(self._queue, 1, [info], self._fence)
        except vk.VkErrorDeviceLost as error:
            raise XrLost("the headset's graphics device was lost: start again") from error
        self._submitted = True

    def close(self) -> None:
        """Free the fence; the queue must be idle."""
        vk.vkDestroyFence(self._device, self._fence, None)


class Uploader:
    """Makes uploads into `swapchain` from buffers whose rows are `row_bytes` apart."""

    def __init__(self, vulkan: VulkanDevice, swapchain: EyeSwapchain, row_bytes: int) -> None:
        self._vulkan, self._row_bytes = vulkan, row_bytes
        self._images = [vk.ffi.cast("VkImage", image) for image in swapchain.images]
        self._size = swapchain.size
        info = vk.VkCommandPoolCreateInfo(queueFamilyIndex=vulkan.family)
        self._pool = vk.vkCreateCommandPool(vulkan.device, info, None)
        self._uploads: list[Upload] = []

    def upload(self, buffer: Any, offset: int = 0) -> Upload:
        """The way from a VkBuffer, from byte `offset` on, into every image."""
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
            self._record(command, image, buffer, offset)
        upload = Upload(self._vulkan.queue, self._vulkan.device, made)
        self._uploads.append(upload)
        return upload

    def _record(self, command: Any, image: Any, buffer: Any, offset: int) -> None:
        writable = vk.VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL
        region = vk.VkBufferImageCopy(
            bufferOffset=offset,
            bufferRowLength=self._row_bytes // TEXEL_BYTES,
            bufferImageHeight=0,
            imageSubresource=vk.VkImageSubresourceLayers(mipLevel=0, **_WHOLE),
            imageOffset=(0, 0, 0),
            imageExtent=(*self._size, 1),
        )
        vk.vkBeginCommandBuffer(command, vk.VkCommandBufferBeginInfo())
        # The runtime hands images over, and takes them back, as colour attachments. What they
        # held is not needed, so their old layout may be taken as undefined.
        _barrier(
            command,
            image,
            (vk.VK_IMAGE_LAYOUT_UNDEFINED, writable),
            (0, vk.VK_ACCESS_TRANSFER_WRITE_BIT),
            (vk.VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT),
        )
        vk.vkCmdCopyBufferToImage(command, buffer, image, writable, 1, [region])
        _barrier(
            command,
            image,
            (writable, vk.VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL),
            (vk.VK_ACCESS_TRANSFER_WRITE_BIT, vk.VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT),
            (
                vk.VK_PIPELINE_STAGE_TRANSFER_BIT,
                vk.VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
            ),
        )
        vk.vkEndCommandBuffer(command)

    def close(self) -> None:
        """Free everything; waits for the queue. Safe to call twice."""
        if self._pool is not None:
            self._vulkan.wait_idle()
            for upload in self._uploads:
                upload.close()
            vk.vkDestroyCommandPool(self._vulkan.device, self._pool, None)
        self._pool, self._uploads = None, []


def _barrier(
    command: Any,
    image: Any,
    layouts: tuple[int, int],
    access: tuple[int, int],
    stages: tuple[int, int],
) -> None:
    barrier = vk.VkImageMemoryBarrier(
        srcAccessMask=access[0],
        dstAccessMask=access[1],
        oldLayout=layouts[0],
        newLayout=layouts[1],
        srcQueueFamilyIndex=vk.VK_QUEUE_FAMILY_IGNORED,
        dstQueueFamilyIndex=vk.VK_QUEUE_FAMILY_IGNORED,
        image=image,
        subresourceRange=vk.VkImageSubresourceRange(baseMipLevel=0, levelCount=1, **_WHOLE),
    )
    vk.vkCmdPipelineBarrier(command, *stages, 0, 0, None, 0, None, 1, [barrier])
