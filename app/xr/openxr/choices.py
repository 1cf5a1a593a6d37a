"""What to take of what a runtime offers: pure decisions, each from best to last."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.xr.driver import XrError

GRAPHICS: tuple[str, ...] = ("XR_KHR_vulkan_enable2", "XR_KHR_vulkan_enable")
"""Ways to a Vulkan session; the first one offered is taken."""

CLOCKS = ("XR_KHR_convert_timespec_time", "XR_KHR_win32_convert_performance_counter_time")

WELCOME = (
    *CLOCKS,
    "XR_KHR_visibility_mask",
    "XR_EXT_local_floor",
    "XR_EXT_hand_interaction",
    "XR_FB_display_refresh_rate",
)
"""Extensions that are used where they exist."""

HEADLESS = "XR_MND_headless"
DEBUG = "XR_EXT_debug_utils"

SWAPCHAIN_FORMATS = {43: "VK_FORMAT_R8G8B8A8_SRGB"}
"""Formats that take the renderer's bytes as they are; VkFormat to its name."""

BLEND_OPAQUE = 1  # XR_ENVIRONMENT_BLEND_MODE_OPAQUE

FLOOR_SPACES = (1000426000, 3)  # XR_REFERENCE_SPACE_TYPE_LOCAL_FLOOR, STAGE: the floor is y = 0
EYE_LEVEL_SPACE = 2  # XR_REFERENCE_SPACE_TYPE_LOCAL
EYE_LEVEL_M = 1.6
"""Assumed height of the eyes where a runtime does not know the floor, metres."""


def choose_extensions(offered: Collection[str], *, headless: bool, debug: bool) -> list[str]:
    """The instance extensions to enable. Raises `XrError` when a needed one is missing."""
    needed = (HEADLESS,) if headless else GRAPHICS
    main = next((name for name in needed if name in offered), None)
    if main is None:
        raise XrError(
            f"the OpenXR runtime offers no {' or '.join(needed)}: "
            + ("use the simulated driver" if headless else "use another runtime or update it")
        )
    if not any(clock in offered for clock in CLOCKS):
        raise XrError(f"the OpenXR runtime offers no {CLOCKS[0]}: update it or use another")
    wanted = (*WELCOME, DEBUG) if debug else WELCOME
    return [main, *(name for name in wanted if name in offered)]


def choose_format(offered: Iterable[int]) -> int:
    """The swapchain's VkFormat. Raises `XrError` when none takes the renderer's bytes."""
    for vk_format in offered:
        if vk_format in SWAPCHAIN_FORMATS:
            return vk_format
    names = " or ".join(SWAPCHAIN_FORMATS.values())
    raise XrError(f"the OpenXR runtime offers no {names} swapchain: use another runtime")


def choose_blend_mode(offered: Iterable[int]) -> int:
    """Opaque where it exists (the scene is a closed room), else what the runtime prefers."""
    modes = list(offered)
    return BLEND_OPAQUE if BLEND_OPAQUE in modes or not modes else modes[0]


def choose_space(offered: Collection[int]) -> tuple[int, float]:
    """The XrReferenceSpaceType of the world, and the floor's height in it, metres."""
    for space in FLOOR_SPACES:
        if space in offered:
            return space, 0.0
    return EYE_LEVEL_SPACE, -EYE_LEVEL_M


def choose_refresh_rate(offered: Collection[float], wanted_hz: float | None) -> float | None:
    """The offered rate nearest to the wanted one; None: leave the display as it is."""
    if wanted_hz is None or not offered:
        return None
    return min(offered, key=lambda rate: abs(rate - wanted_hz))


def fit_view_size(
    recommended: tuple[int, int], scale: float, largest_view: tuple[int, int], largest_width: int
) -> tuple[int, int]:
    """Size of one eye image, pixels: recommended times `scale`, shrunk alike in both directions
    until it fits `largest_view` and twice beside itself `largest_width`.

    Raises `ValueError` for a scale that is not positive.
    """
    if not scale > 0:
        raise ValueError(f"the render scale must be positive, not {scale}")
    width, height = recommended
    widest = min(largest_view[0], largest_width // 2)
    scale = min(scale, widest / width, largest_view[1] / height)
    return max(1, int(width * scale)), max(1, int(height * scale))
