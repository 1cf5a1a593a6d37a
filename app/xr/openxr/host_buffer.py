"""Vulkan buffers that the host writes: memory of their own, or pages that hold the bytes already.

The latter needs VK_EXT_external_memory_host. What is imported there is another device's mapping;
not every driver takes one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.xr.driver import XrError
from app.xr.openxr.vulkan_device import VulkanDevice, vk

HOST_FLAGS = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
HOST_ALLOCATION = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT


class HostBuffer:
    """`size` bytes that the queue can copy from and, with `readable`, to.

    Raises `XrError` when the device has no such memory left.
    """

    def __init__(self, vulkan: VulkanDevice, size: int, *, readable: bool = False) -> None:
        usage = vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        if readable:
            usage |= vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        self._bound = _Bound(vulkan, size, usage)
        self.handle = self._bound.handle
        mapped = vk.vkMapMemory(vulkan.device, self._bound.memory, 0, size, 0)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        """The buffer's memory, mapped for good."""

    def close(self) -> None:
        """Free the buffer; safe to call twice. The queue must have finished with it."""
        self._bound.close()


class ImportedBuffer:
    """The pages of `data`, uint8, as a buffer that the queue can copy from, from `offset` on.

    The pages must outlive the buffer. Raises `XrError` when the driver does not take them.
    """

    def __init__(self, vulkan: VulkanDevice, data: NDArray[np.uint8]) -> None:
        if not vulkan.import_alignment:
            raise XrError(f"{vulkan.name} imports no host memory")
        self.address = data.ctypes.data
        self.offset = self.address % vulkan.import_alignment
        pages = -(-(self.offset + data.nbytes) // vulkan.import_alignment)
        self._bound = _Bound(
            vulkan,
            pages * vulkan.import_alignment,
            vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
            imported=self.address - self.offset,
        )
        self.handle = self._bound.handle

    def close(self) -> None:
        """Let go of the pages; safe to call twice. The queue must have finished with them."""
        self._bound.close()


class _Bound:
    """A buffer bound to host-visible memory: new, or imported from an address."""

    def __init__(
        self, vulkan: VulkanDevice, size: int, usage: int, imported: int | None = None
    ) -> None:
        self._device = vulkan.device
        self.handle: Any = None
        self.memory: Any = None
        external = vk.VkExternalMemoryBufferCreateInfo(handleTypes=HOST_ALLOCATION)
        source = (
            None
            if imported is None
            else vk.VkImportMemoryHostPointerInfoEXT(
                handleType=HOST_ALLOCATION, pHostPointer=vk.ffi.cast("void *", imported)
            )
        )
        try:
            info = vk.VkBufferCreateInfo(
                pNext=None if source is None else external,
                size=size,
                usage=usage,
                sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
            )
            self.handle = vk.vkCreateBuffer(self._device, info, None)
            needs = vk.vkGetBufferMemoryRequirements(self._device, self.handle)
            allowed = needs.memoryTypeBits
            if imported is not None:
                allowed &= vulkan.importable_types(imported)
            kind = vulkan.memory_type(allowed, HOST_FLAGS)
            if kind is None:
                raise XrError(f"{vulkan.name} has no host-visible memory for images")
            allocation = vk.VkMemoryAllocateInfo(
                pNext=source,
                allocationSize=needs.size if imported is None else size,
                memoryTypeIndex=kind,
            )
            self.memory = vk.vkAllocateMemory(self._device, allocation, None)
            vk.vkBindBufferMemory(self._device, self.handle, self.memory, 0)
        except vk.VkError as error:
            self.close()
            raise XrError(f"{vulkan.name} gives no memory for images: {error!r}") from error
        except XrError:
            self.close()
            raise

    def close(self) -> None:
        if self.handle is not None:
            vk.vkDestroyBuffer(self._device, self.handle, None)
        if self.memory is not None:
            vk.vkFreeMemory(self._device, self.memory, None)
        self.handle = self.memory = None
