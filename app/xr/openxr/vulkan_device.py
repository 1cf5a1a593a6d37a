"""The session's own small Vulkan device: it fills the images that the runtime shows."""

from __future__ import annotations

from typing import Any, Protocol

from app.xr.driver import XrError

try:
    import vulkan as vk
except Exception as error:  # it opens libvulkan
    raise XrError(
        f"Vulkan cannot be loaded ({str(error).strip() or type(error).__name__}): pip install "
        "vulkan; apt install libvulkan1 and the graphics card's driver"
    ) from error

IMPORT_EXTENSION = "VK_EXT_external_memory_host"
SHARING_EXTENSIONS = ("VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd")
WANTED_EXTENSIONS = (IMPORT_EXTENSION, *SHARING_EXTENSIONS)

_NEWEST = vk.VK_MAKE_VERSION(1, 1, 0)


class DeviceMaker(Protocol):
    """Makes what a `VulkanDevice` consists of, in this order."""

    def instance(self) -> Any:
        """The VkInstance."""

    def physical(self, instance: Any) -> Any:
        """The VkPhysicalDevice."""

    def device(self, physical: Any, family: int, extensions: list[str]) -> Any:
        """The VkDevice, with one queue of `family`, these extensions and its own ones."""


class VulkanDevice:
    """A logical device with one queue that can draw and copy.

    Raises `XrError` when it cannot be made.
    """

    def __init__(self, maker: DeviceMaker) -> None:
        self.instance: Any = None
        self.device: Any = None
        try:
            self.instance = maker.instance()
            self.physical = maker.physical(self.instance)
            self.family = _graphics_family(self.physical)
            offered = extension_names(vk.vkEnumerateDeviceExtensionProperties(self.physical, None))
            self.extensions = [name for name in WANTED_EXTENSIONS if name in offered]
            self.device = maker.device(self.physical, self.family, self.extensions)
        except vk.VkError as error:
            self.close()
            raise XrError(f"the session's Vulkan device cannot be made: {error!r}") from error
        except BaseException:
            self.close()
            raise
        self.queue: Any = vk.vkGetDeviceQueue(self.device, self.family, 0)
        self.name = str(vk.vkGetPhysicalDeviceProperties(self.physical).deviceName)
        self.memory_types = _memory_types(self.physical)
        imports = IMPORT_EXTENSION in self.extensions
        self.import_alignment = _import_alignment(self.physical) if imports else 0
        """Alignment of host memory that can be imported, bytes; 0 when none can."""

    @property
    def uuids(self) -> tuple[bytes, bytes]:
        """Device and driver: alike for devices that can share memory, 16 bytes each."""
        ids = vk.VkPhysicalDeviceIDProperties()
        vk.vkGetPhysicalDeviceProperties2(self.physical, vk.VkPhysicalDeviceProperties2(pNext=ids))
        return bytes(vk.ffi.buffer(ids.deviceUUID)), bytes(vk.ffi.buffer(ids.driverUUID))

    def memory_type(self, allowed: int, properties: int) -> int | None:
        """Index of a memory type among the bits `allowed` that has all `properties`."""
        for index, flags in enumerate(self.memory_types):
            if allowed & (1 << index) and flags & properties == properties:
                return index
        return None

    def importable_types(self, address: int) -> int:
        """Bits of the memory types that can import the pages at an aligned address; maybe none."""
        ask = vk.vkGetDeviceProcAddr(self.device, "vkGetMemoryHostPointerPropertiesEXT")
        kind = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
        try:
            return int(ask(self.device, kind, vk.ffi.cast("void *", address)).memoryTypeBits)
        except (vk.VkException, vk.VkError, KeyError):  # KeyError: results the package cannot name
            return 0

    def wait_idle(self) -> None:
        """Block until the queue has nothing left to do."""
        vk.vkDeviceWaitIdle(self.device)

    def close(self) -> None:
        """Destroy the device; the session must be gone. Safe to call twice."""
        if self.device is not None:
            vk.vkDestroyDevice(self.device, None)
        if self.instance is not None:
            vk.vkDestroyInstance(self.instance, None)
        self.device = self.instance = None


def application_info() -> Any:
    """The VkApplicationInfo of this program."""
    return vk.VkApplicationInfo(
        pApplicationName="DinoVision",
        applicationVersion=1,
        pEngineName="DinoVision",
        engineVersion=1,
        apiVersion=_NEWEST,
    )


def device_info(family: int, extensions: list[str]) -> Any:
    """The VkDeviceCreateInfo of a device with one queue."""
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, pQueuePriorities=[1.0])
    return vk.VkDeviceCreateInfo(pQueueCreateInfos=[queue], ppEnabledExtensionNames=extensions)


def _graphics_family(physical: Any) -> int:
    families = vk.vkGetPhysicalDeviceQueueFamilyProperties(physical)
    for index, family in enumerate(families):
        if family.queueFlags & vk.VK_QUEUE_GRAPHICS_BIT:
            return index
    raise XrError("the headset's graphics device cannot draw: update its driver")


def _memory_types(physical: Any) -> list[int]:
    memory = vk.vkGetPhysicalDeviceMemoryProperties(physical)
    return [memory.memoryTypes[i].propertyFlags for i in range(memory.memoryTypeCount)]


def _import_alignment(physical: Any) -> int:
    limits = vk.VkPhysicalDeviceExternalMemoryHostPropertiesEXT()
    vk.vkGetPhysicalDeviceProperties2(physical, vk.VkPhysicalDeviceProperties2(pNext=limits))
    return int(limits.minImportedHostPointerAlignment)


def extension_names(extensions: Any) -> set[str]:
    """Names in a list of VkExtensionProperties."""
    return {extension.extensionName for extension in extensions}
