"""Images that two devices of one graphics card see: the session's Vulkan device and Dawn's.

The session's device makes the image and exports its memory as a file descriptor; Dawn makes the
same image on that memory (VK_KHR_external_memory_fd). The descriptor is closed at once: memory
lives as long as either side holds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from app.xr.driver import XrError
from app.xr.openxr.shared_fences import KINDS, Fence, FenceKind, choose_kind
from app.xr.openxr.vulkan_device import SHARING_EXTENSIONS, VulkanDevice, vk
from engine.errors import first_line
from engine.gpu import Gpu

MEMORY_FEATURE = "shared-texture-memory-opaque-f-d"
HANDLE = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT

COPY_DST = 2
"""WebGPU's GPUTextureUsage.COPY_DST."""


@dataclass(frozen=True)
class Access:
    """What Dawn says when it lets go of an image: when, and in which layout.

    `layouts` are the two VkImageLayouts of its release barrier. Whoever gets this has the fence.
    """

    fence: Fence
    layouts: tuple[int, int]


def check_shareable(gpu: Gpu, vulkan: VulkanDevice) -> FenceKind:
    """What fences are made of where the two devices can share images.

    Raises `XrError` with the reason where they cannot.
    """
    if gpu.implementation != "dawn":
        raise XrError("the renderer runs on wgpu-native, which shares no images (--gpu dawn does)")
    if missing := [name for name in SHARING_EXTENSIONS if name not in vulkan.extensions]:
        raise XrError(f"the headset's graphics device {vulkan.name} lacks {missing[0]}")
    features = gpu.device.features
    if MEMORY_FEATURE not in features:
        raise XrError(f"Dawn imports no images on {gpu.name} ({MEMORY_FEATURE})")
    with dawn_told("asking for the adapter's identity"):
        uuids = _extras().get_adapter_properties(gpu.adapter).get("vulkan_uuids", {})
    if (uuids.get("device_uuid"), uuids.get("driver_uuid")) != vulkan.uuids:
        raise XrError(f"the renderer runs on {gpu.name}, the headset on {vulkan.name}")
    return choose_kind(vulkan, features)


class SharedImage:
    """An image of `size` (width, height), rgba8unorm-srgb, for copies on both devices.

    `texture` may be used on Dawn's queue between `begin` and `end`, `image` (a VkImage) on the
    session's queue after that. Raises `XrError` when one of the devices refuses.
    """

    def __init__(self, gpu: Gpu, vulkan: VulkanDevice, size: tuple[int, int]) -> None:
        self._vulkan = vulkan
        self._extras = _extras()
        self._device = gpu.device
        self.image: Any = None
        self.texture: Any = None
        self._memory: Any = None
        self._shared: Any = None
        self._accessed = False
        info = _image_info(size)
        try:
            self.image = vk.vkCreateImage(vulkan.device, info, None)
            kind, nbytes = self._allocate()
            with dawn_told("sharing an image"):
                self._shared = self._import(info, kind, nbytes)
                self.texture = self._shared.create_texture(label="shared eyes", usage=COPY_DST)
        except vk.VkError as error:
            self.close()
            raise XrError(f"{vulkan.name} gives no images to share: {error!r}") from error
        except BaseException:
            self.close()
            raise

    def _allocate(self) -> tuple[int, int]:
        """Memory for the image alone; its memory type and size in bytes."""
        device = self._vulkan.device
        needs = vk.vkGetImageMemoryRequirements(device, self.image)
        local = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
        kind = self._vulkan.memory_type(needs.memoryTypeBits, local)
        if kind is None:
            raise XrError(f"{self._vulkan.name} has no memory for images to share")
        alone = vk.VkMemoryDedicatedAllocateInfo(image=self.image, buffer=vk.ffi.NULL)
        exported = vk.VkExportMemoryAllocateInfo(pNext=alone, handleTypes=HANDLE)
        allocation = vk.VkMemoryAllocateInfo(
            pNext=exported, allocationSize=needs.size, memoryTypeIndex=kind
        )
        self._memory = vk.vkAllocateMemory(device, allocation, None)
        vk.vkBindImageMemory(device, self.image, self._memory, 0)
        return kind, int(needs.size)

    def _import(self, info: Any, kind: int, nbytes: int) -> Any:
        """The image's memory as Dawn's."""
        export = vk.vkGetDeviceProcAddr(self._vulkan.device, "vkGetMemoryFdKHR")
        wanted = vk.VkMemoryGetFdInfoKHR(memory=self._memory, handleType=HANDLE)
        fd = export(self._vulkan.device, wanted)
        try:
            return self._extras.import_shared_texture_memory(
                self._device,
                opaque_fd={
                    "fd": fd,
                    "vk_image_create_info": _address(info),
                    "memory_type_index": kind,
                    "allocation_size": nbytes,
                    "dedicated_allocation": True,
                },
            )
        finally:
            os.close(fd)

    def begin(self, after: Fence | None) -> None:
        """Let Dawn's queue write the whole image after a fence, which is closed.

        What the image holds is lost.
        """
        try:
            with dawn_told("taking a shared image"):
                fences = [self._imported(after)] if after and not after.passed else []
                self._shared.begin_access(
                    self.texture,
                    initialized=False,
                    fences=fences,
                    signaled_values=[1] * len(fences),
                    vk_image_layout=(vk.VK_IMAGE_LAYOUT_UNDEFINED, vk.VK_IMAGE_LAYOUT_GENERAL),
                )
        finally:
            if after is not None:
                after.close()
        self._accessed = True

    def _imported(self, fence: Fence) -> Any:
        """Dawn's own copy of a fence."""
        return self._extras.import_shared_fence(self._device, **{fence.kind.argument: fence.fd})

    def end(self) -> Access:
        """Take the image from Dawn, behind everything that has been submitted so far."""
        with dawn_told("giving a shared image"):
            self._accessed = False
            state = self._shared.end_access(self.texture)
            (fence,) = state.fences
            exported = fence.export()
            (kind,) = (kind for kind in KINDS if kind.name == exported["type"])
            # Dawn's fence keeps its own descriptor.
            fd = os.dup(exported["fd"]) if exported["fd"] >= 0 else -1
            return Access(Fence(kind, fd), state.vk_image_layout)

    def close(self) -> None:
        """Free both sides; the session's queue must be idle. Safe to call twice."""
        with suppress(Exception):  # Dawn's device may be lost
            if self._accessed:
                self._shared.end_access(self.texture)
            if self.texture is not None:
                self.texture.destroy()
        self._accessed = False
        self.texture = self._shared = None
        if self.image is not None:
            vk.vkDestroyImage(self._vulkan.device, self.image, None)
        if self._memory is not None:
            vk.vkFreeMemory(self._vulkan.device, self._memory, None)
        self.image = self._memory = None


def _image_info(size: tuple[int, int]) -> Any:
    usage = vk.VK_IMAGE_USAGE_TRANSFER_SRC_BIT | vk.VK_IMAGE_USAGE_TRANSFER_DST_BIT
    return vk.VkImageCreateInfo(
        pNext=vk.VkExternalMemoryImageCreateInfo(handleTypes=HANDLE),
        flags=vk.VK_IMAGE_CREATE_MUTABLE_FORMAT_BIT,  # Dawn asks for it
        imageType=vk.VK_IMAGE_TYPE_2D,
        format=vk.VK_FORMAT_R8G8B8A8_SRGB,
        extent=(*size, 1),
        mipLevels=1,
        arrayLayers=1,
        samples=vk.VK_SAMPLE_COUNT_1_BIT,
        tiling=vk.VK_IMAGE_TILING_OPTIMAL,
        usage=usage,
        sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE,
        initialLayout=vk.VK_IMAGE_LAYOUT_UNDEFINED,
    )


def _address(info: Any) -> int:
    pointer = info if vk.ffi.typeof(info).kind == "pointer" else vk.ffi.addressof(info)
    return int(vk.ffi.cast("uintptr_t", pointer))


def _extras() -> Any:
    from wgpudawn.backends.dawn import extras

    return extras


@contextmanager
def dawn_told(doing: str) -> Iterator[None]:
    """Turn what wgpudawn raises into an `XrError` that names what was being done."""
    try:
        yield
    except Exception as error:
        raise XrError(f"Dawn: {doing} failed: {first_line(error)}") from error
