"""The swapchain that takes both eyes side by side, and what of it each eye's view shows."""

from __future__ import annotations

from typing import Any

from app.xr.driver import XrError, XrLost
from app.xr.openxr.binding import STEREO, address, told, xr
from app.xr.openxr.choices import choose_format, fit_view_size
from app.xr.openxr.instance import XrInstance, quietly
from app.xr.openxr.session import XrSession

WAIT_NS = 2_000_000_000
"""A compositor that keeps an image for so long is taken for dead."""


class EyeSwapchain:
    """Images of `2 * eye_size[0]` by `eye_size[1]` pixels, sRGB: left eye left, right eye right.

    Raises `XrError` when the runtime offers no format that fits.
    """

    def __init__(self, session: XrSession, eye_size: tuple[int, int]) -> None:
        width, height = self.size = (2 * eye_size[0], eye_size[1])
        self.eye_size = eye_size
        with told("creating the swapchain"):
            self.format = choose_format(xr.enumerate_swapchain_formats(session.handle))
            self.handle: Any = xr.create_swapchain(
                session.handle,
                xr.SwapchainCreateInfo(
                    usage_flags=xr.SwapchainUsageFlags.COLOR_ATTACHMENT_BIT
                    | xr.SwapchainUsageFlags.TRANSFER_DST_BIT
                    | xr.SwapchainUsageFlags.TRANSFER_SRC_BIT,
                    format=self.format,
                    sample_count=1,
                    width=width,
                    height=height,
                    face_count=1,
                    array_size=1,
                    mip_count=1,
                ),
            )
            found = xr.enumerate_swapchain_images(self.handle, xr.SwapchainImageVulkanKHR)
        self.images = [address(image.image) for image in found]
        """Addresses of the VkImages."""

    def acquire(self) -> int:
        """Index of the image to write next, once the compositor has let go of it."""
        with told("acquiring a swapchain image"):
            index = xr.acquire_swapchain_image(self.handle, xr.SwapchainImageAcquireInfo())
        try:
            with told("waiting for a swapchain image"):
                xr.wait_swapchain_image(self.handle, xr.SwapchainImageWaitInfo(timeout=WAIT_NS))
        except XrError as error:
            if isinstance(error.__cause__, xr.TimeoutExpired):
                raise XrLost("the compositor does not give its images back: restart it") from error
            raise
        return int(index)

    def release(self) -> None:
        """Hand the acquired image over; what writes it has been submitted."""
        with told("releasing a swapchain image"):
            xr.release_swapchain_image(self.handle, xr.SwapchainImageReleaseInfo())

    def sub_image(self, eye: int) -> Any:
        """The XrSwapchainSubImage of eye 0 (left) or 1."""
        width, height = self.eye_size
        area = xr.Rect2Di(xr.Offset2Di(eye * width, 0), xr.Extent2Di(width, height))
        return xr.SwapchainSubImage(self.handle, area, 0)

    def close(self) -> None:
        """Destroy the swapchain; safe to call twice."""
        if self.handle is not None:
            quietly(xr.destroy_swapchain, self.handle)
        self.handle = None


def recommended_view_size(instance: XrInstance, scale: float) -> tuple[int, int]:
    """Width and height of one eye image, pixels: what the runtime recommends, times `scale`.

    Both eyes get the larger of their sizes. Raises `XrError` without a stereo configuration and
    `ValueError` for a scale that is not positive.
    """
    with told("asking for the view sizes"):
        views = xr.enumerate_view_configuration_views(instance.handle, instance.system, STEREO)
    limits = instance.properties.graphics_properties
    return fit_view_size(
        (
            max(view.recommended_image_rect_width for view in views),
            max(view.recommended_image_rect_height for view in views),
        ),
        scale,
        (
            min(view.max_image_rect_width for view in views),
            min(
                *(view.max_image_rect_height for view in views),
                limits.max_swapchain_image_height,
            ),
        ),
        limits.max_swapchain_image_width,
    )
