import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.xr.driver import XrError
from app.xr.openxr import choices


def test_extensions_that_exist_and_no_others() -> None:
    offered = {"XR_KHR_vulkan_enable", "XR_KHR_vulkan_enable2", "XR_KHR_convert_timespec_time"}
    chosen = choices.choose_extensions(offered, headless=False, debug=True)
    assert chosen == ["XR_KHR_vulkan_enable2", "XR_KHR_convert_timespec_time"]
    older = choices.choose_extensions(offered - {chosen[0]}, headless=False, debug=False)
    assert older[0] == "XR_KHR_vulkan_enable"
    everything = {*offered, *choices.WELCOME, choices.DEBUG, choices.HEADLESS, "XR_X_other"}
    assert choices.choose_extensions(everything, headless=True, debug=True) == [
        choices.HEADLESS,
        *choices.WELCOME,
        choices.DEBUG,
    ]
    quiet = choices.choose_extensions(everything, headless=False, debug=False)
    assert choices.DEBUG not in quiet and choices.HEADLESS not in quiet


@pytest.mark.parametrize(
    ("offered", "headless", "named"),
    [
        (set(choices.CLOCKS), False, "XR_KHR_vulkan_enable2 or XR_KHR_vulkan_enable"),
        (set(choices.CLOCKS), True, "XR_MND_headless"),
        (set(choices.GRAPHICS), False, "XR_KHR_convert_timespec_time"),
    ],
)
def test_missing_extensions(offered: set[str], headless: bool, named: str) -> None:
    with pytest.raises(XrError, match=named):
        choices.choose_extensions(offered, headless=headless, debug=False)


def test_swapchain_format() -> None:
    assert choices.choose_format([91, 97, 43, 50, 37]) == 43
    with pytest.raises(XrError, match="VK_FORMAT_R8G8B8A8_SRGB"):
        choices.choose_format([91, 37])


def test_blend_mode() -> None:
    assert choices.choose_blend_mode([3, 1, 2]) == 1
    assert choices.choose_blend_mode([2, 3]) == 2
    assert choices.choose_blend_mode([]) == 1


def test_world_space_has_its_floor_at_zero() -> None:
    view, local, stage, local_floor = 1, 2, 3, 1000426000
    assert choices.choose_space({view, local, stage, local_floor}) == (local_floor, 0.0)
    assert choices.choose_space({view, local, stage}) == (stage, 0.0)
    assert choices.choose_space({view, local}) == (local, -choices.EYE_LEVEL_M)


def test_refresh_rate() -> None:
    offered = [72.0, 90.0, 120.0]
    assert choices.choose_refresh_rate(offered, 100.0) == 90.0
    assert choices.choose_refresh_rate(offered, None) is None
    assert choices.choose_refresh_rate([], 90.0) is None


def test_view_size() -> None:
    large = (16384, 16384)
    assert choices.fit_view_size((1832, 1920), 1.0, large, 16384) == (1832, 1920)
    assert choices.fit_view_size((1832, 1920), 0.5, large, 16384) == (916, 960)
    assert choices.fit_view_size((2000, 1000), 1.0, large, 2000) == (1000, 500)
    assert choices.fit_view_size((320, 240), 10.0, (1920, 1080), 16384) == (1440, 1080)
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="render scale"):
            choices.fit_view_size((320, 240), scale, large, 16384)


side = st.integers(1, 20000)


@given(side, side, st.floats(0.01, 20), side, side, st.integers(2, 40000))
def test_view_size_fits(
    width: int, height: int, scale: float, most_width: int, most_height: int, swapchain: int
) -> None:
    fitted = choices.fit_view_size((width, height), scale, (most_width, most_height), swapchain)
    assert 1 <= fitted[0] <= max(1, min(most_width, swapchain // 2))
    assert 1 <= fitted[1] <= most_height
