"""A Vulkan device and images in place of a session's, where presenters need no runtime."""

from __future__ import annotations

from typing import Any

from app.xr.openxr.vulkan_device import (
    VulkanDevice,
    application_info,
    device_info,
    vk,
)

IMAGES = 3


class _Maker:
    """The first adapter, with nothing but what a `VulkanDevice` itself wants."""

    def instance(self) -> Any:
        return vk.vkCreateInstance(
            vk.VkInstanceCreateInfo(pApplicationInfo=application_info()), None
        )

    def physical(self, instance: Any) -> Any:
        return vk.vkEnumeratePhysicalDevices(instance)[0]

    def device(self, physical: Any, family: int, extensions: list[str]) -> Any:
        return vk.vkCreateDevice(physical, device_info(family, extensions), None)


class Images:
    """A `Swapchain` whose images go round, of `eye` (width, height) pixels twice."""

    def __init__(self, vulkan: VulkanDevice, eye: tuple[int, int]) -> None:
        self.size = (2 * eye[0], eye[1])
        self._vulkan = vulkan
        self._last = IMAGES - 1
        self._made = [self._make() for _ in range(IMAGES)]
        self.images = [int(vk.ffi.cast("uintptr_t", image)) for image, _ in self._made]

    def _make(self) -> tuple[Any, Any]:
        device = self._vulkan.device
        info = vk.VkImageCreateInfo(
            imageType=vk.VK_IMAGE_TYPE_2D,
            format=vk.VK_FORMAT_R8G8B8A8_SRGB,
            extent=(*self.size, 1),
            mipLevels=1,
            arrayLayers=1,
            samples=vk.VK_SAMPLE_COUNT_1_BIT,
            tiling=vk.VK_IMAGE_TILING_OPTIMAL,
            usage=vk.VK_IMAGE_USAGE_TRANSFER_SRC_BIT
            | vk.VK_IMAGE_USAGE_TRANSFER_DST_BIT
            | vk.VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT,
            sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
            initialLayout=vk.VK_IMAGE_LAYOUT_UNDEFINED,
        )
        image = vk.vkCreateImage(device, info, None)
        needs = vk.vkGetImageMemoryRequirements(device, image)
        kind = self._vulkan.memory_type(needs.memoryTypeBits, 0)
        allocation = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind)
        memory = vk.vkAllocateMemory(device, allocation, None)
        vk.vkBindImageMemory(device, image, memory, 0)
        return image, memory

    def acquire(self) -> int:
        self._last = (self._last + 1) % IMAGES
        return self._last

    def release(self) -> None:
        pass

    def close(self) -> None:
        self._vulkan.wait_idle()
        for image, memory in self._made:
            vk.vkDestroyImage(self._vulkan.device, image, None)
            vk.vkFreeMemory(self._vulkan.device, memory, None)
        self._made = []


class StandIn:
    """What presenters need of a `Headset`."""

    def __init__(self, eye: tuple[int, int]) -> None:
        self.vulkan = VulkanDevice(_Maker())
        self.swapchain = Images(self.vulkan, eye)

    def close(self) -> None:
        self.swapchain.close()
        self.vulkan.close()
