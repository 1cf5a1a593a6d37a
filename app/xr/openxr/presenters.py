"""Which presenter brings the eye images to the runtime, and why not the better one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.xr.driver import XrError, XrLost
from app.xr.openxr.presenter_host import HostPresenter
from app.xr.openxr.presenter_shared import SharedPresenter
from app.xr.openxr.uploader import Swapchain
from app.xr.openxr.vulkan_device import VulkanDevice
from app.xr.presenter import Presenter, PresenterChoice
from engine.gpu import Gpu

if TYPE_CHECKING:
    import wgpu

THROUGH_HOST = "eye images go through the host's memory"
READ_IN_PLACE = "the headset's device reads them there, measured to cost less than sharing them"


def make_presenter(
    choice: PresenterChoice,
    gpu: Gpu,
    eyes: wgpu.GPUTexture,
    vulkan: VulkanDevice,
    swapchain: Swapchain,
) -> Presenter:
    """The presenter of `eyes` into `swapchain`; its `note` says what it is and why.

    Raises `XrError` when the texture does not fit the swapchain.
    """
    parts = (gpu, eyes, vulkan, swapchain)
    if choice == "host":
        return HostPresenter(*parts)
    if choice == "auto":
        host = HostPresenter(*parts, note=f"{THROUGH_HOST}: {READ_IN_PLACE}")
        if host.imports:
            return host
        host.close()
    try:
        if choice == "auto" and gpu.facts.is_cpu:
            raise XrError("a CPU device waits for the work before it hands a fence over")
        return SharedPresenter(*parts)
    except XrLost:
        raise
    except XrError as error:
        return HostPresenter(*parts, note=f"{THROUGH_HOST}: {error}")
