"""Fences between Dawn's queue and the session's, both ways: when work on a shared image is done.

A fence travels as a file descriptor that whoever has it must pass on or close
(VK_KHR_external_semaphore_fd).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.xr.driver import XrError
from app.xr.openxr.vulkan_device import VulkanDevice, vk


@dataclass(frozen=True)
class FenceKind:
    """A kind of descriptor in Vulkan's words, and in Dawn's: of fences, imports and features."""

    handle_type: int
    name: str
    argument: str
    feature: str


KINDS = (
    FenceKind(
        vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_SYNC_FD_BIT,
        "sync-fd",
        "sync_fd",
        "shared-fence-sync-f-d",
    ),
    FenceKind(
        vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
        "vk-semaphore-opaque-fd",
        "vk_semaphore_opaque_fd",
        "shared-fence-vk-semaphore-opaque-f-d",
    ),
)
"""The better one first."""


@dataclass(frozen=True)
class Fence:
    """Something to wait for. A sync file of -1 stands for work that has been done already."""

    kind: FenceKind
    fd: int

    @property
    def passed(self) -> bool:
        """Whether there is nothing to wait for, and nothing to close."""
        return self.fd < 0

    def close(self) -> None:
        """Nobody will wait for it."""
        if not self.passed:
            os.close(self.fd)


def choose_kind(vulkan: VulkanDevice, features: Collection[str]) -> FenceKind:
    """What the session's device can give to a Dawn device with these features.

    Raises `XrError` when there is nothing.
    """
    for kind in KINDS:
        if kind.feature in features and _exportable(vulkan.physical, kind):
            return kind
    raise XrError(f"{vulkan.name} and Dawn have no fences in common")


def _exportable(physical: Any, kind: FenceKind) -> bool:
    asked = vk.VkPhysicalDeviceExternalSemaphoreInfo(handleType=kind.handle_type)
    found = vk.VkExternalSemaphoreProperties()
    vk.vkGetPhysicalDeviceExternalSemaphoreProperties(physical, asked, found)
    wanted = vk.VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT
    return bool(found.externalSemaphoreFeatures & wanted)


class SharedFences:
    """Two semaphores of the session's device: `drawn` is Dawn's word, `copied` the answer.

    Answers are of `kind`. Raises `XrError` when the device cannot make them.
    """

    def __init__(self, vulkan: VulkanDevice, kind: FenceKind) -> None:
        self._device, self._kind = vulkan.device, kind
        self._import = vk.vkGetDeviceProcAddr(self._device, "vkImportSemaphoreFdKHR")
        self._export = vk.vkGetDeviceProcAddr(self._device, "vkGetSemaphoreFdKHR")
        self.drawn: Any = None
        self.copied: Any = None
        exported = vk.VkExportSemaphoreCreateInfo(handleTypes=kind.handle_type)
        with _refusal(f"{vulkan.name} makes no fences to share", self.close):
            self.drawn = vk.vkCreateSemaphore(self._device, vk.VkSemaphoreCreateInfo(), None)
            info = vk.VkSemaphoreCreateInfo(pNext=exported)
            self.copied = vk.vkCreateSemaphore(self._device, info, None)

    def take(self, fence: Fence) -> bool:
        """Make `drawn` what Dawn's queue must reach; False: it has, do not wait.

        The semaphore must not be in use. The fence is not the caller's any more.
        """
        if fence.passed:
            return False
        info = vk.VkImportSemaphoreFdInfoKHR(
            semaphore=self.drawn,
            flags=vk.VK_SEMAPHORE_IMPORT_TEMPORARY_BIT,
            handleType=fence.kind.handle_type,
            fd=fence.fd,
        )
        with _refusal("the headset's device takes no fence of Dawn's", fence.close):
            self._import(self._device, info)
        return True

    def give(self) -> Fence:
        """The fence of the submission that signals `copied`, to be waited for once."""
        info = vk.VkSemaphoreGetFdInfoKHR(semaphore=self.copied, handleType=self._kind.handle_type)
        with _refusal("the headset's device gives no fence"):
            return Fence(self._kind, int(self._export(self._device, info)))

    def close(self) -> None:
        """Free both; the session's queue must be idle. Safe to call twice."""
        for semaphore in (self.drawn, self.copied):
            if semaphore is not None:
                vk.vkDestroySemaphore(self._device, semaphore, None)
        self.drawn = self.copied = None


@contextmanager
def _refusal(what: str, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn Vulkan's errors into an `XrError`, after `undo`."""
    try:
        yield
    except vk.VkError as error:
        undo()
        raise XrError(f"{what}: {error!r}") from error
