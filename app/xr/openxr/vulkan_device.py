"""The session's own small Vulkan device, made as the runtime wants it.

Through XR_KHR_vulkan_enable2, where the runtime creates instance and device, or the older
XR_KHR_vulkan_enable, where it only names extensions and the physical device.
"""

from __future__ import annotations

import ctypes
from typing import Any

from app.xr.driver import XrError
from app.xr.openxr.binding import address, checked, function, platform, told, xr
from app.xr.openxr.instance import XrInstance

try:
    import vulkan as vk
except Exception as error:  # it opens libvulkan
    raise XrError(
        f"Vulkan cannot be loaded ({str(error).strip() or type(error).__name__}): pip install "
        "vulkan; apt install libvulkan1 and the graphics card's driver"
    ) from error

IMPORT_EXTENSION = "VK_EXT_external_memory_host"

_NEWEST = vk.VK_MAKE_VERSION(1, 1, 0)


class VulkanDevice:
    """A logical device with one queue that can draw and copy.

    `binding` is what the session is created with. Raises `XrError` when it cannot be made.
    """

    def __init__(self, instance: XrInstance) -> None:
        self.instance: Any = None
        self.device: Any = None
        try:
            with told("making the session's Vulkan device"):
                self._check_requirements(instance)
                maker = _ByRuntime if instance.has("XR_KHR_vulkan_enable2") else _ByExtensions
                made = maker(instance)
                self.instance = made.instance()
                self.physical = made.physical(self.instance)
                self.family = _graphics_family(self.physical)
                offered = _names(vk.vkEnumerateDeviceExtensionProperties(self.physical, None))
                extensions = [IMPORT_EXTENSION] if IMPORT_EXTENSION in offered else []
                self.device = made.device(self.physical, self.family, extensions)
        except vk.VkError as error:
            self.close()
            raise XrError(f"the session's Vulkan device cannot be made: {error!r}") from error
        except BaseException:
            self.close()
            raise
        self.queue: Any = vk.vkGetDeviceQueue(self.device, self.family, 0)
        self.name = str(vk.vkGetPhysicalDeviceProperties(self.physical).deviceName)
        self.memory_types = _memory_types(self.physical)
        self.import_alignment = _import_alignment(self.physical) if extensions else 0
        """Alignment of host memory that can be imported, bytes; 0 when none can."""

    @property
    def binding(self) -> Any:
        """The XrGraphicsBindingVulkanKHR of this device and queue."""
        return xr.GraphicsBindingVulkanKHR(
            instance=_to_ctypes(self.instance, platform.VkInstance),
            physical_device=_to_ctypes(self.physical, platform.VkPhysicalDevice),
            device=_to_ctypes(self.device, platform.VkDevice),
            queue_family_index=self.family,
            queue_index=0,
        )

    def _check_requirements(self, instance: XrInstance) -> None:
        """The specification forbids creating a session before this call."""
        number = "2" if instance.has("XR_KHR_vulkan_enable2") else ""
        ask = function(
            instance.handle,
            f"xrGetVulkanGraphicsRequirements{number}KHR",
            platform.PFN_xrGetVulkanGraphicsRequirements2KHR,
        )
        requirements = xr.GraphicsRequirementsVulkanKHR()
        checked(ask(instance.handle, instance.system, ctypes.byref(requirements)))

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


class _ByRuntime:
    """XR_KHR_vulkan_enable2."""

    def __init__(self, xr_instance: XrInstance) -> None:
        self._xr = xr_instance
        self._loader = ctypes.cast(
            int(vk.ffi.cast("uintptr_t", vk._vulkan.lib.vkGetInstanceProcAddr)),
            platform.PFN_vkGetInstanceProcAddr,
        )

    def instance(self) -> Any:
        info = vk.VkInstanceCreateInfo(pApplicationInfo=_application())
        made, result = xr.create_vulkan_instance_khr(
            self._xr.handle,
            xr.VulkanInstanceCreateInfoKHR(
                system_id=self._xr.system,
                pfn_get_instance_proc_addr=self._loader,
                vulkan_create_info=_to_ctypes(info, ctypes.POINTER(platform.VkInstanceCreateInfo)),
            ),
        )
        _require(result, "instance")
        return vk.ffi.cast("VkInstance", address(made))

    def physical(self, instance: Any) -> Any:
        found = xr.get_vulkan_graphics_device2_khr(
            self._xr.handle,
            xr.VulkanGraphicsDeviceGetInfoKHR(
                system_id=self._xr.system,
                vulkan_instance=_to_ctypes(instance, platform.VkInstance),
            ),
        )
        return vk.ffi.cast("VkPhysicalDevice", address(found))

    def device(self, physical: Any, family: int, extensions: list[str]) -> Any:
        info = _device_info(family, extensions)
        made, result = xr.create_vulkan_device_khr(
            self._xr.handle,
            xr.VulkanDeviceCreateInfoKHR(
                system_id=self._xr.system,
                pfn_get_instance_proc_addr=self._loader,
                vulkan_physical_device=_to_ctypes(physical, platform.VkPhysicalDevice),
                vulkan_create_info=_to_ctypes(info, ctypes.POINTER(platform.VkDeviceCreateInfo)),
            ),
        )
        _require(result, "device")
        return vk.ffi.cast("VkDevice", address(made))


class _ByExtensions:
    """XR_KHR_vulkan_enable."""

    def __init__(self, xr_instance: XrInstance) -> None:
        self._xr = xr_instance

    def instance(self) -> Any:
        wanted = self._extensions("xrGetVulkanInstanceExtensionsKHR")
        offered = _names(vk.vkEnumerateInstanceExtensionProperties(None))
        info = vk.VkInstanceCreateInfo(
            pApplicationInfo=_application(),
            ppEnabledExtensionNames=[name for name in wanted if name in offered],
        )
        return vk.vkCreateInstance(info, None)

    def physical(self, instance: Any) -> Any:
        found = xr.get_vulkan_graphics_device_khr(
            self._xr.handle, self._xr.system, _to_ctypes(instance, platform.VkInstance)
        )
        return vk.ffi.cast("VkPhysicalDevice", address(found))

    def device(self, physical: Any, family: int, extensions: list[str]) -> Any:
        wanted = self._extensions("xrGetVulkanDeviceExtensionsKHR")
        offered = _names(vk.vkEnumerateDeviceExtensionProperties(physical, None))
        names = [name for name in dict.fromkeys((*wanted, *extensions)) if name in offered]
        return vk.vkCreateDevice(physical, _device_info(family, names), None)

    def _extensions(self, name: str) -> list[str]:
        """The names that one of the two enumerating functions gives, as a list."""
        ask = function(self._xr.handle, name, platform.PFN_xrGetVulkanInstanceExtensionsKHR)
        size = ctypes.c_uint32()
        checked(ask(self._xr.handle, self._xr.system, 0, ctypes.byref(size), None))
        text = ctypes.create_string_buffer(size.value)
        checked(ask(self._xr.handle, self._xr.system, size, ctypes.byref(size), text))
        return text.value.decode().split()


def _application() -> Any:
    return vk.VkApplicationInfo(
        pApplicationName="DinoVision",
        applicationVersion=1,
        pEngineName="DinoVision",
        engineVersion=1,
        apiVersion=_NEWEST,
    )


def _device_info(family: int, extensions: list[str]) -> Any:
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


def _names(extensions: Any) -> set[str]:
    return {extension.extensionName for extension in extensions}


def _to_ctypes(cdata: Any, kind: Any) -> Any:
    """A cffi handle or structure as a ctypes pointer of the same address."""
    if vk.ffi.typeof(cdata).kind == "struct":
        cdata = vk.ffi.addressof(cdata)
    return ctypes.cast(int(vk.ffi.cast("uintptr_t", cdata)), kind)


def _require(result: Any, what: str) -> None:
    if result.value != 0:
        raise XrError(f"the runtime's Vulkan {what} cannot be made (VkResult {result.value})")
