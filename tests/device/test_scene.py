import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import wgpu
from scene_rig import (
    CAMERA_COLOUR,
    COMPONENTS_COLOUR,
    FOV,
    PAINTED_COLOUR,
    SIZE,
    Scene,
    eyes,
    pixel_of,
    pixels,
    seen,
)

from app.scene import panels as layout
from app.scene.hud import HudState, render_hud
from app.scene.mirror import Mirror, letterbox
from app.scene.renderer import BufferRange, PanelSources, SceneRenderer
from app.xr.driver import Fov, Pose, View
from engine.gpu import Gpu


@pytest.fixture(scope="module")
def scene_device(gpu: Gpu) -> wgpu.GPUDevice:
    return gpu.device


@pytest.fixture(scope="module")
def shared_scene(scene_device: wgpu.GPUDevice) -> Scene:
    return Scene(scene_device)


@pytest.fixture
def scene(shared_scene: Scene) -> Iterator[Scene]:
    shared_scene.reset()
    yield shared_scene


@pytest.mark.parametrize("samples", [1, 4])
def test_each_panel_shows_its_source_in_true_colour(
    scene_device: wgpu.GPUDevice, samples: int
) -> None:
    image = Scene(scene_device, samples).draw()
    for panel, colour in enumerate((CAMERA_COLOUR, PAINTED_COLOUR, COMPONENTS_COLOUR)):
        for u, v in ((0.5, 0.5), (0.15, 0.15), (0.85, 0.85)):
            shown = seen(image, eyes(), panel, u=u, v=v)
            np.testing.assert_allclose(shown, [colour, colour], atol=1)


def test_pictures_are_upright_and_not_mirrored(scene: Scene) -> None:
    corners = {(0, 0): (1, 0, 0), (0, 1): (0, 1, 0), (1, 0): (0, 0, 1), (1, 1): (1, 1, 0)}
    small = np.array([[corners[row, column] for column in (0, 1)] for row in (0, 1)])
    large = small.repeat(112, 0).repeat(112, 1)
    scene.renderer.set_camera((large * 255).astype(np.uint8))
    scene.paint(large)
    scene.compose(small.repeat(7, 0).repeat(7, 1))
    image = scene.draw()
    for panel in range(3):
        for (row, column), colour in corners.items():
            shown = seen(image, eyes(), panel, u=0.25 + 0.5 * column, v=0.25 + 0.5 * row)
            np.testing.assert_allclose(shown, np.array([colour] * 2) * 255, atol=12)


def test_asymmetric_fov_and_turned_head_show_the_panel_where_it_is_projected(scene: Scene) -> None:
    turn = math.radians(-20) / 2
    fov = Fov(math.radians(-52), math.radians(41), math.radians(44), math.radians(-50))
    pose = Pose((0.1, 1.5, -0.2), (0.0, math.sin(turn), 0.0, math.cos(turn)))
    views = (View(pose, fov), View(replace(pose, position=(0.16, 1.5, -0.2)), fov))
    image = scene.draw(views)
    for at in ({"u": 0.06, "v": 0.5}, {"u": 0.94, "v": 0.5}, {"u": 0.5, "v": 0.94}):
        np.testing.assert_allclose(seen(image, views, 1, **at), [PAINTED_COLOUR] * 2, atol=1)


def test_eyes_differ_by_the_parallax_of_the_panels(scene: Scene) -> None:
    def left_edge(eye: np.ndarray, view: View) -> int:
        row = pixel_of(view, layout.PICTURES[1])[0]
        is_painted = (abs(eye[row] - PAINTED_COLOUR) <= 2).all(-1)
        return int(np.flatnonzero(is_painted).min())

    views = eyes(apart=0.3)
    left, right = scene.draw(views)
    expected = [pixel_of(view, layout.PICTURES[1], u=0.0)[1] for view in views]
    assert expected[0] - expected[1] > 10
    assert abs(left_edge(left, views[0]) - expected[0]) <= 2
    assert abs(left_edge(right, views[1]) - expected[1]) <= 2
    same = eyes(apart=0.0)
    assert abs(np.subtract(*scene.draw(same))).max() <= 2  # only the dither differs


@pytest.mark.parametrize("move", [{"x": 0.3}, {"y": 1.9}, {"z": 0.4}])
def test_moving_the_head_moves_the_picture(scene: Scene, move: dict[str, float]) -> None:
    still, again, moved = scene.draw(), scene.draw(), scene.draw(eyes(**move))
    np.testing.assert_array_equal(still, again)
    assert (abs(still - moved).max(-1) > 20).mean() > 0.03
    np.testing.assert_allclose(seen(moved, eyes(**move), 1), [PAINTED_COLOUR] * 2, atol=1)


def test_network_outputs_show_and_are_clamped(scene: Scene) -> None:
    scene.paint(np.full((224, 224, 3), (3.0, -2.0, 0.5)))
    scene.compose(np.full((14, 14, 3), (-1.0, 0.5, 2.0)))
    image = scene.draw()
    np.testing.assert_allclose(seen(image, eyes(), 1), [[255, 0, 128]] * 2, atol=1)
    np.testing.assert_allclose(seen(image, eyes(), 2), [[0, 128, 255]] * 2, atol=1)


def test_pictures_light_the_room(scene: Scene) -> None:
    for write in (scene.paint, scene.compose):
        write(np.zeros((224 if write == scene.paint else 14,) * 2 + (3,)))
    scene.renderer.set_camera(np.zeros((224, 224, 3), np.uint8))
    dark = scene.draw()
    scene.renderer.set_camera(np.full((224, 224, 3), (255, 0, 0), np.uint8))
    lit = scene.draw()
    beside = pixel_of(eyes()[0], layout.PICTURES[0], u=-0.1)
    gain = lit[0][beside] - dark[0][beside]
    assert gain[0] > 30 and gain[2] < 5


def test_hud_and_captions_are_drawn(scene: Scene) -> None:
    image = scene.draw()
    for picture in layout.PICTURES:
        row, column = pixel_of(eyes()[0], layout.caption_panel(picture.pose))
        text = image[0, row - 8 : row + 8, column - 20 : column + 20]
        assert text.max() > 120 and text.min() < 60

    row, column = pixel_of(eyes()[0], layout.HUD)
    scene.renderer.set_hud(np.full((400, 1280, 4), (0, 250, 0, 255), np.uint8))
    np.testing.assert_allclose(scene.draw()[0, row, column], (0, 250, 0), atol=1)
    scene.renderer.set_hud(np.full((400, 1280, 4), (0, 250, 0, 0), np.uint8))
    through = scene.draw()
    scene.renderer.hud_visible = False
    np.testing.assert_array_equal(scene.draw(), through)


def away_from_panels(x: float = 0.0) -> tuple[View, View]:
    view = View(Pose((x, 1.6, 0.0), (0.0, 1.0, 0.0, 0.0)), FOV)
    return view, view


def test_floor_lines_fade_into_the_horizon_without_a_seam(scene: Scene) -> None:
    scene.renderer.hud_visible = False
    eye = scene.draw(away_from_panels())[0]
    contrast = np.ptp(eye.sum(-1), axis=1)
    horizon = SIZE // 2
    assert contrast[horizon + 60 :].max() > 60
    assert contrast[: horizon + 4].max() < 15
    above, below = eye[horizon - 3 : horizon].mean((0, 1)), eye[horizon : horizon + 3].mean((0, 1))
    np.testing.assert_allclose(above, below, atol=1.5)


def test_distant_floor_does_not_shimmer_when_the_head_moves(scene: Scene) -> None:
    scene.renderer.hud_visible = False
    middle = slice(SIZE // 2 + 4, SIZE // 2 + 50)
    frames = [scene.draw(away_from_panels(x))[0, middle] for x in (0.0, 0.004, 0.008)]
    for before, after in pairwise(frames):
        assert abs(before - after).max() < 6


def test_steady_state_creates_no_gpu_object(
    scene: Scene, scene_device: wgpu.GPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = scene_device.create_texture(
        size=(320, 200, 1), format="rgba8unorm", usage=wgpu.TextureUsage.RENDER_ATTACHMENT
    )
    view = target.create_view()
    mirror = Mirror(scene_device, scene.renderer.eyes_view, "rgba8unorm")
    created: list[str] = []

    def spy(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            created.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for name in dir(type(scene_device)):
        if name.startswith("create_") and name != "create_command_encoder":
            spy(type(scene_device), name)
    spy(type(target), "create_view")

    for frame in range(3):
        scene.renderer.set_camera(np.full((224, 224, 3), frame, np.uint8))
        scene.renderer.set_hud(render_hud(HudState(missed=frame)))
        mirror.view = ("both", "left", "both")[frame]
        scene.submit(eyes(), lambda encoder: mirror.encode(encoder, view, (320, 200)))
    assert created == []
    target.create_view()
    assert created == ["create_view"]


@pytest.mark.parametrize("target_format", ["rgba8unorm", "rgba8unorm-srgb"])
def test_mirror_shows_the_eyes_letterboxed(
    scene: Scene, scene_device: wgpu.GPUDevice, target_format: str
) -> None:
    usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
    target = scene_device.create_texture(size=(512, 320, 1), format=target_format, usage=usage)
    view = target.create_view()
    mirror = Mirror(scene_device, scene.renderer.eyes_view, target_format)
    both_eyes = scene.draw()

    scene.submit(eyes(), lambda encoder: mirror.encode(encoder, view, (512, 320)))
    shown = pixels(scene_device, target)[..., :3]
    assert shown[:32].max() == 0 and shown[288:].max() == 0
    for eye in (0, 1):
        half = shown[32:288, eye * 256 : (eye + 1) * 256]
        for panel in (0, 1, 2):
            row, column = pixel_of(eyes()[eye], layout.PICTURES[panel])
            np.testing.assert_allclose(half[row, column], both_eyes[eye, row, column], atol=2)

    mirror.view = "left"
    scene.submit(eyes(), lambda encoder: mirror.encode(encoder, view, (512, 320)))
    shown = pixels(scene_device, target)[..., :3]
    assert shown[:, :95].max() == 0 and shown[:, 417:].max() == 0
    row, column = pixel_of(eyes()[0], layout.PICTURES[2])
    at = (round(row * 1.25), 96 + round(column * 1.25))
    np.testing.assert_allclose(shown[at], COMPONENTS_COLOUR, atol=2)


def test_mirror_refuses_an_unknown_view(scene: Scene, scene_device: wgpu.GPUDevice) -> None:
    mirror = Mirror(scene_device, scene.renderer.eyes_view, "rgba8unorm", view="right")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'both' or 'left'"):
        mirror.encode(scene_device.create_command_encoder(), scene.renderer.eyes_view, (8, 8))


def test_letterbox_keeps_the_shape() -> None:
    assert letterbox((200, 100), (100, 100)) == (0, 25, 100, 50)
    assert letterbox((100, 100), (300, 150)) == (75, 0, 150, 150)


def test_bad_input_is_refused(scene: Scene, scene_device: wgpu.GPUDevice) -> None:
    with pytest.raises(ValueError, match="camera image"):
        scene.renderer.set_camera(np.zeros((224, 224), np.uint8))
    with pytest.raises(ValueError, match=r"uint8 \[224, 224, 4\]"):
        scene.renderer.set_camera(np.zeros((100, 224, 3), np.uint8))
    with pytest.raises(ValueError, match="float32"):
        scene.renderer.set_camera(np.zeros((224, 224, 3), np.float32))
    with pytest.raises(ValueError, match="HUD"):
        scene.renderer.set_hud(np.zeros((10, 10, 4), np.uint8))
    with pytest.raises(ValueError, match="2 views"):
        scene.renderer.set_views(eyes()[:1])

    good = PanelSources(
        BufferRange(scene.painted, 256, 224 * 224 * 12),
        BufferRange(scene.components, 512, 14 * 14 * 12),
    )
    short = replace(good, painted=BufferRange(scene.painted, 256, 100))
    beyond = replace(good, painted=BufferRange(scene.painted, 512, 224 * 224 * 12))
    skewed = replace(good, components=BufferRange(scene.components, 4, 14 * 14 * 12))
    for sources, reason in ((short, "must span"), (beyond, "end within"), (skewed, "aligned")):
        with pytest.raises(ValueError, match=reason):
            SceneRenderer(scene_device, (64, 64), sources)
    with pytest.raises(ValueError, match="samples"):
        SceneRenderer(scene_device, (64, 64), good, samples=2)
    with pytest.raises(ValueError, match="eye size"):
        SceneRenderer(scene_device, (10**6, 64), good)
