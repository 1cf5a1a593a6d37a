"""Reads what the presenter wrote into a swapchain image, just before it is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from app.xr.openxr.host_buffer import HostBuffer
from app.xr.openxr.vulkan_device import vk

if TYPE_CHECKING:
    from app.xr.openxr.headset import Headset
    from tests.xr.stand_in import StandIn

COLOUR = {"aspectMask": vk.VK_IMAGE_ASPECT_COLOR_BIT, "baseArrayLayer": 0, "layerCount": 1}


class SwapchainReader:
    """Wraps `release` of the headset's swapchain; `last` is the newest image, uint8 [h, 2 w, 4]."""

    def __init__(self, headset: Headset | StandIn) -> None:
        self._vulkan, self._swapchain = headset.vulkan, headset.swapchain
        width, height = self._swapchain.size
        self._buffer = HostBuffer(self._vulkan, width * height * 4, readable=True)
        info = vk.VkCommandPoolCreateInfo(
            flags=vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=self._vulkan.family,
        )
        self._pool = vk.vkCreateCommandPool(self._vulkan.device, info, None)
        self._command = vk.vkAllocateCommandBuffers(
            self._vulkan.device,
            vk.VkCommandBufferAllocateInfo(
                commandPool=self._pool,
                level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            ),
        )[0]
        self.last: np.ndarray | None = None
        self._acquire, self._release = self._swapchain.acquire, self._swapchain.release
        self._index = 0
        swapchain: Any = self._swapchain
        swapchain.acquire, swapchain.release = self.acquire, self.release

    def acquire(self) -> int:
        self._index = self._acquire()
        return self._index

    def release(self) -> None:
        self._vulkan.wait_idle()
        self._read(vk.ffi.cast("VkImage", self._swapchain.images[self._index]))
        width, height = self._swapchain.size
        self.last = self._buffer.bytes.reshape(height, width, 4).copy()
        self._release()

    def close(self) -> None:
        """Leave the swapchain as it was."""
        swapchain: Any = self._swapchain
        swapchain.acquire, swapchain.release = self._acquire, self._release
        self._vulkan.wait_idle()
        vk.vkDestroyCommandPool(self._vulkan.device, self._pool, None)
        self._buffer.close()

    def _read(self, image: Any) -> None:
        colour = vk.VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL
        source = vk.VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL
        region = vk.VkBufferImageCopy(
            bufferOffset=0,
            bufferRowLength=0,
            bufferImageHeight=0,
            imageSubresource=vk.VkImageSubresourceLayers(mipLevel=0, **COLOUR),
            imageOffset=(0, 0, 0),
            imageExtent=(*self._swapchain.size, 1),
        )
        vk.vkBeginCommandBuffer(self._command, vk.VkCommandBufferBeginInfo())
        self._barrier(image, colour, source)
        vk.vkCmdCopyImageToBuffer(self._command, image, source, self._buffer.handle, 1, [region])
        self._barrier(image, source, colour)
        vk.vkEndCommandBuffer(self._command)
        submit = vk.VkSubmitInfo(pCommandBuffers=[self._command])
        vk.vkQueueSubmit(self._vulkan.queue, 1, [submit], vk.ffi.NULL)
        self._vulkan.wait_idle()

    def _barrier(self, image: Any, old: int, new: int) -> None:
        stage = vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
        everything = vk.VK_ACCESS_MEMORY_READ_BIT | vk.VK_ACCESS_MEMORY_WRITE_BIT
        barrier = vk.VkImageMemoryBarrier(
            srcAccessMask=everything,
            dstAccessMask=everything,
            oldLayout=old,
            newLayout=new,
            srcQueueFamilyIndex=vk.VK_QUEUE_FAMILY_IGNORED,
            dstQueueFamilyIndex=vk.VK_QUEUE_FAMILY_IGNORED,
            image=image,
            subresourceRange=vk.VkImageSubresourceRange(baseMipLevel=0, levelCount=1, **COLOUR),
        )
        vk.vkCmdPipelineBarrier(self._command, stage, stage, 0, 0, None, 0, None, 1, [barrier])
