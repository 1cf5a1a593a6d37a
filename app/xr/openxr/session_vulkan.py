"""Makes the session's Vulkan device as the runtime wants it.

Through XR_KHR_vulkan_enable2, where the runtime creates instance and device, or the older
XR_KHR_vulkan_enable, where it only names extensions and the physical device.
"""

from __future__ import annotations

import ctypes
from typing import Any

from app.xr.driver import XrError
from app.xr.openxr.binding import address, checked, function, platform, told, xr
from app.xr.openxr.instance import XrInstance
from app.xr.openxr.vulkan_device import (
    DeviceMaker,
    VulkanDevice,
    application_info,
    device_info,
    extension_names,
    vk,
)


def make_vulkan_device(instance: XrInstance) -> VulkanDevice:
    """The device for a session of `instance`. Raises `XrError` when it cannot be made."""
    with told("making the session's Vulkan device"):
        _check_requirements(instance)
        newer = instance.has("XR_KHR_vulkan_enable2")
        maker: DeviceMaker = _ByRuntime(instance) if newer else _ByExtensions(instance)
        return VulkanDevice(maker)


def graphics_binding(vulkan: VulkanDevice) -> Any:
    """The XrGraphicsBindingVulkanKHR of a device and its queue."""
    return xr.GraphicsBindingVulkanKHR(
        instance=_to_ctypes(vulkan.instance, platform.VkInstance),
        physical_device=_to_ctypes(vulkan.physical, platform.VkPhysicalDevice),
        device=_to_ctypes(vulkan.device, platform.VkDevice),
        queue_family_index=vulkan.family,
        queue_index=0,
    )


def _check_requirements(instance: XrInstance) -> None:
    """The specification forbids creating a session before this call."""
    number = "2" if instance.has("XR_KHR_vulkan_enable2") else ""
    ask = function(
        instance.handle,
        f"xrGetVulkanGraphicsRequirements{number}KHR",
        platform.PFN_xrGetVulkanGraphicsRequirements2KHR,
    )
    requirements = xr.GraphicsRequirementsVulkanKHR()
    checked(ask(instance.handle, instance.system, ctypes.byref(requirements)))


class _ByRuntime:
    """XR_KHR_vulkan_enable2."""

    def __init__(self, xr_instance: XrInstance) -> None:
        self._xr = xr_instance
        self._loader = ctypes.cast(
            int(vk.ffi.cast("uintptr_t", vk._vulkan.lib.vkGetInstanceProcAddr)),
            platform.PFN_vkGetInstanceProcAddr,
        )

    def instance(self) -> Any:
        info = vk.VkInstanceCreateInfo(pApplicationInfo=application_info())
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
        info = device_info(family, extensions)
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
        offered = extension_names(vk.vkEnumerateInstanceExtensionProperties(None))
        info = vk.VkInstanceCreateInfo(
            pApplicationInfo=application_info(),
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
        offered = extension_names(vk.vkEnumerateDeviceExtensionProperties(physical, None))
        names = [name for name in dict.fromkeys((*wanted, *extensions)) if name in offered]
        return vk.vkCreateDevice(physical, device_info(family, names), None)

    def _extensions(self, name: str) -> list[str]:
        """The names that one of the two enumerating functions gives, as a list."""
        ask = function(self._xr.handle, name, platform.PFN_xrGetVulkanInstanceExtensionsKHR)
        size = ctypes.c_uint32()
        checked(ask(self._xr.handle, self._xr.system, 0, ctypes.byref(size), None))
        text = ctypes.create_string_buffer(size.value)
        checked(ask(self._xr.handle, self._xr.system, size, ctypes.byref(size), text))
        return text.value.decode().split()


def _to_ctypes(cdata: Any, kind: Any) -> Any:
    """A cffi handle or structure as a ctypes pointer of the same address."""
    if vk.ffi.typeof(cdata).kind == "struct":
        cdata = vk.ffi.addressof(cdata)
    return ctypes.cast(int(vk.ffi.cast("uintptr_t", cdata)), kind)


def _require(result: Any, what: str) -> None:
    if result.value != 0:
        raise XrError(f"the runtime's Vulkan {what} cannot be made (VkResult {result.value})")
