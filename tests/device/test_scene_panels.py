"""Panels that move and light up, the marks of hands, and pixels that nobody sees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from scene_rig import CAMERA_COLOUR, COMPONENTS_COLOUR, PAINTED_COLOUR, SIZE, Scene, eyes, pixel_of

from app.scene import panels as layout
from app.scene.grab import AIMED, HELD
from app.scene.hand_marks import IDLE_RAY_M
from app.scene.hidden_area import MAX_TRIANGLES
from app.scene.panels import Panel
from app.scene.rigid import IDENTITY, compose, moved
from app.scene.transforms import orientation, tangents
from app.xr.driver import Fov, Pose, Quat, Vec3, View
from app.xr.hands import Hand
from engine.gpu import Gpu

DEFAULT = [panel.pose for panel in layout.MOVABLE]
CAMERA, PAINTED, COMPONENTS, HUD = range(4)
GREEN = (0, 250, 0)
AWAY = Hand()
AHEAD = IDENTITY.orientation
OUT_OF_SIGHT = Pose((0.0, 1.6, 5.0), AHEAD)


@pytest.fixture(scope="module")
def panel_scene(gpu: Gpu) -> Scene:
    return Scene(gpu.device)


@pytest.fixture
def scene(panel_scene: Scene) -> Iterator[Scene]:
    panel_scene.reset()
    panel_scene.renderer.set_hud(np.full((400, 1280, 4), (*GREEN, 255), np.uint8))
    yield panel_scene
    panel_scene.reset()


def with_pose(panel: int, pose: Pose) -> list[Pose]:
    return [pose if index == panel else old for index, old in enumerate(DEFAULT)]


def pixel(view: View, point: Vec3) -> tuple[int, int]:
    """Row and column at which a point of the world is seen."""
    return pixel_of(view, Panel(Pose(point, AHEAD), (1.0, 1.0)))


def shown(image: np.ndarray, point: Vec3) -> np.ndarray:
    """Colours, [2, 3], at which both eyes of `eyes()` see a point."""
    return np.array([eye[pixel(view, point)] for eye, view in zip(image, eyes(), strict=True)])


def changed(image: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Which pixels differ, bool [2, SIZE, SIZE]."""
    return (image != before).any(-1)


# -- panels --


def test_a_picture_is_seen_where_it_was_put_and_its_caption_beneath_it(scene: Scene) -> None:
    before = scene.draw()
    tilted = Pose((0.5, 1.4, -1.4), orientation(-0.5, 0.3))
    roll = Pose((0.0, 0.0, 0.0), (0.0, 0.0, math.sin(0.2), math.cos(0.2)))
    there = compose(tilted, roll)
    scene.renderer.set_panels([there, OUT_OF_SIGHT, OUT_OF_SIGHT, OUT_OF_SIGHT])
    image = scene.draw()
    panel = Panel(there, layout.PICTURES[CAMERA].size)
    for u, v in ((0.5, 0.5), (0.06, 0.06), (0.94, 0.94), (0.06, 0.94)):
        for eye, view in zip(image, eyes(), strict=True):
            np.testing.assert_allclose(eye[pixel_of(view, panel, u, v)], CAMERA_COLOUR, atol=1)
    assert abs(shown(image, DEFAULT[CAMERA].position) - CAMERA_COLOUR).max() > 50

    row, column = pixel_of(eyes()[0], layout.caption_panel(there))
    text = image[0, row - 12 : row + 12, column - 24 : column + 24]
    assert text.min(-1).max() > 100  # the picture beside it is not white
    row, column = pixel_of(eyes()[0], layout.caption_panel(layout.PICTURES[CAMERA].pose))
    old = np.s_[0, row - 6 : row + 6, column - 16 : column + 16]
    assert before[old].max() > 120 and image[old].max() < 90


def test_the_hud_is_seen_where_it_was_put(scene: Scene) -> None:
    there = Pose((-0.3, 1.9, -0.8), orientation(0.4, 0.2))
    scene.renderer.set_panels(with_pose(HUD, there))
    np.testing.assert_allclose(shown(scene.draw(), there.position), [GREEN] * 2, atol=1)


def test_panels_put_back_are_seen_as_at_first(gpu: Gpu, scene: Scene) -> None:
    first = Scene(gpu.device)
    first.renderer.set_hud(np.full((400, 1280, 4), (*GREEN, 255), np.uint8))
    scene.renderer.set_panels(with_pose(PAINTED, DEFAULT[HUD]), (1.0, 1.0, 1.0, 1.0))
    assert (scene.draw() != first.draw()).any()
    scene.renderer.set_panels(DEFAULT)
    np.testing.assert_array_equal(scene.draw(), first.draw())


@pytest.mark.parametrize(("near", "far"), [*permutations(range(4), 2)])
def test_the_nearer_panel_covers_the_farther_one(scene: Scene, near: int, far: int) -> None:
    colours = (CAMERA_COLOUR, PAINTED_COLOUR, COMPONENTS_COLOUR, GREEN)
    width, height = layout.MOVABLE[near].size
    middle = (0.2 - width / 2, 1.7 - height / 2, -0.7)
    poses = [OUT_OF_SIGHT] * 4
    poses[near], poses[far] = Pose(middle, AHEAD), Pose((0.3, 1.8, -1.0), AHEAD)
    scene.renderer.set_panels(poses)
    image = scene.draw()
    np.testing.assert_allclose(shown(image, (0.1, 1.65, -0.7)), [colours[near]] * 2, atol=1)
    np.testing.assert_allclose(shown(image, (0.25, 1.65, -0.7)), [colours[far]] * 2, atol=1)
    if near != HUD:  # the far one is seen past the round corner
        np.testing.assert_allclose(shown(image, (0.198, 1.698, -0.7)), [colours[far]] * 2, atol=60)


def test_a_panel_on_its_side_or_edge_on_leaves_a_lit_room(scene: Scene) -> None:
    scene.renderer.load = 4
    half = math.sqrt(0.5)
    upright: Quat = (0.5, 0.5, 0.5, 0.5)  # its width is exactly +y
    try:
        for turn in (upright, (half, 0.0, 0.0, half), (0.0, half, 0.0, half)):
            poses = [Pose((x, 1.6, -1.5), turn) for x in (-1.0, 0.0, 1.0)]
            scene.renderer.set_panels([*poses, DEFAULT[HUD]])
            image = scene.draw()
            # A number that is none is written as black, darker than the room.
            assert image.max(-1).min() >= 5
    finally:
        scene.renderer.load = 0


@pytest.mark.parametrize("panel", range(4))
def test_a_held_panel_is_lit_around_its_edge_and_one_aimed_at_less(
    scene: Scene, panel: int
) -> None:
    poses = [OUT_OF_SIGHT] * 4
    poses[panel] = Pose((0.0, 1.6, -1.2), AHEAD)
    images = []
    for strength in (0.0, AIMED, HELD):
        scene.renderer.set_panels(poses, [strength * (index == panel) for index in range(4)])
        images.append(scene.draw())
    width, height = layout.MOVABLE[panel].size
    for side in (-1, 1):
        line = (0.0, 1.6 + side * (height / 2 + 0.012), -1.2)
        none, aimed, held = (shown(image, line).sum(-1).max() for image in images)
        assert none + 30 < aimed and aimed + 60 < held
    lit = changed(images[2], images[0])
    for eye, view in enumerate(eyes()):
        around = Panel(poses[panel], (width + 0.2, height + 0.2))
        (top, left), (bottom, right) = (pixel_of(view, around, at, at) for at in (0.0, 1.0))
        lit[eye, max(top, 0) : bottom + 1, max(left, 0) : right + 1] = False
    assert not lit.any()
    np.testing.assert_array_equal(*(shown(images[at], (0.0, 1.6, -1.2)) for at in (0, 2)))


def test_panels_that_are_none_are_refused_and_the_old_ones_stay(scene: Scene) -> None:
    before = scene.draw()
    with pytest.raises(ValueError, match="4 movable panels, got 3 poses"):
        scene.renderer.set_panels(DEFAULT[:3])
    with pytest.raises(ValueError, match="2 highlights"):
        scene.renderer.set_panels(DEFAULT, (0.0, 1.0))
    for broken in (Pose((0, 0, 0), (0, 0, 0, 0)), Pose((0, math.nan, 0), AHEAD)):
        with pytest.raises(ValueError, match="no rigid motion"):
            scene.renderer.set_panels(with_pose(HUD, broken))
    with pytest.raises(ValueError, match="not finite"):
        scene.renderer.set_panels(DEFAULT, (0.0, 0.0, 0.0, math.inf))
    np.testing.assert_array_equal(scene.draw(), before)


# -- hands --

GRIP = Pose((0.1, 1.5, -0.4), AHEAD)


def test_a_tracked_hand_is_seen_at_its_grip_and_an_absent_one_nowhere(scene: Scene) -> None:
    before = scene.draw()
    scene.renderer.set_hands((AWAY, Hand(grip=GRIP)))
    image = scene.draw()
    differs = changed(image, before)
    for eye, view in enumerate(eyes()):
        row, column = pixel(view, GRIP.position)
        assert differs[eye, row - 3 : row + 4, column - 3 : column + 4].all()
        differs[eye, row - 25 : row + 26, column - 25 : column + 26] = False
    assert not differs.any()
    scene.renderer.set_hands((AWAY, AWAY))
    np.testing.assert_array_equal(scene.draw(), before)


def test_a_hand_that_grabs_has_another_colour(scene: Scene) -> None:
    colours = []
    for grabbing in (False, True):
        scene.renderer.set_hands((Hand(grip=GRIP, grabbing=grabbing), AWAY))
        colours.append(shown(scene.draw(), GRIP.position)[0])
    red, blue = 0, 2
    assert colours[1][blue] - colours[1][red] > colours[0][blue] - colours[0][red] + 60


def test_hands_are_in_front_of_or_behind_a_panel(scene: Scene) -> None:
    scene.renderer.set_panels(with_pose(PAINTED, Pose((0.0, 1.6, -0.6), AHEAD)))
    before = scene.draw()
    scene.renderer.set_hands((Hand(grip=replace(GRIP, position=(0.1, 1.5, -0.9))), AWAY))
    np.testing.assert_array_equal(scene.draw(), before)
    scene.renderer.set_hands((Hand(grip=GRIP), AWAY))
    assert abs(shown(scene.draw(), GRIP.position) - PAINTED_COLOUR).max() > 50


def test_a_ray_goes_along_the_aim_as_far_as_it_is_told(scene: Scene) -> None:
    aim = Pose((0.2, 1.3, -0.3), orientation(0.5, 0.4))

    def seen_at(ray: float | None) -> list[bool]:
        scene.renderer.set_hands((AWAY, Hand(aim=aim)), (None, ray))
        differs = changed(scene.draw(), before)
        found = []
        for metres in (0.2, 0.4, 0.8):
            row, column = pixel(eyes()[0], moved(aim, (0.0, 0.0, -metres)))
            found.append(bool(differs[0, row - 1 : row + 2, column - 1 : column + 2].any()))
        return found

    before = scene.draw()
    assert seen_at(0.3) == [True, False, False]
    assert seen_at(1.0) == [True, True, True]
    assert 0.2 < IDLE_RAY_M < 0.8
    assert seen_at(None) == [True, True, False]
    assert seen_at(0.0) == [False, False, False]


def test_broken_poses_of_hands_are_not_shown_and_one_hand_is_refused(scene: Scene) -> None:
    before = scene.draw()
    broken = (Pose((0, 0, 0), (0, 0, 0, 0)), Pose((math.inf, 0, 0), AHEAD))
    scene.renderer.set_hands([Hand(grip=pose, aim=pose) for pose in broken])
    np.testing.assert_array_equal(scene.draw(), before)
    with pytest.raises(ValueError, match="2 hands"):
        scene.renderer.set_hands((AWAY,))
    with pytest.raises(ValueError, match="2 hands"):
        scene.renderer.set_hands((AWAY, AWAY), (None,))


# -- visibility masks --


@dataclass(frozen=True)
class Triangles:
    vertices: NDArray[np.float32]
    indices: NDArray[np.uint32]


def strip(fov: Fov, share: float, side: str = "left") -> Triangles:
    """Two triangles that hide `share` of an eye's columns, at its left or its right."""
    left, right, up, down = tangents(fov)
    edge = share * (right - left)
    begin, end = (left, left + edge) if side == "left" else (right - edge, right)
    corners = [(begin, down), (end, down), (end, up), (begin, up)]
    return Triangles(np.array(corners, np.float32), np.array([0, 1, 2, 0, 2, 3], np.uint32))


def lopsided() -> tuple[View, View]:
    """Eyes with the unequal fields of view of a headset."""
    half = math.radians(1)
    left = Fov(-48 * half, 36 * half, 40 * half, -44 * half)
    right = Fov(-36 * half, 48 * half, 40 * half, -44 * half)
    one, other = eyes()
    return replace(one, fov=left), replace(other, fov=right)


@pytest.mark.parametrize("samples", [1, 4])
def test_hidden_pixels_stay_black_and_all_others_as_they_are(gpu: Gpu, samples: int) -> None:
    scene, views = Scene(gpu.device, samples), lopsided()
    scene.renderer.load = 2
    scene.renderer.set_hands((Hand(grip=GRIP, aim=GRIP), AWAY))
    before = scene.draw(views)
    assert before.max(-1).min() > 0
    masks = strip(views[0].fov, 0.25), strip(views[1].fov, 0.125, "right")
    scene.renderer.set_visibility_masks(*masks)
    image = scene.draw(views)
    hidden = np.zeros((2, SIZE, SIZE), bool)
    hidden[0, :, : SIZE // 4] = True
    hidden[1, :, SIZE - SIZE // 8 :] = True
    assert image[hidden].max() == 0
    np.testing.assert_array_equal(image[~hidden], before[~hidden])

    scene.renderer.set_visibility_masks(None, masks[1])
    one = scene.draw(views)
    np.testing.assert_array_equal(one[0], before[0])
    np.testing.assert_array_equal(one[1], image[1])
    scene.renderer.set_visibility_masks(None, None)
    np.testing.assert_array_equal(scene.draw(views), before)


def test_a_mask_goes_with_the_eye_and_not_with_the_head(scene: Scene) -> None:
    scene.renderer.set_visibility_masks(*(strip(view.fov, 0.25) for view in eyes()))
    turned = orientation(0.7, -0.3)
    views = tuple(replace(view, pose=replace(view.pose, orientation=turned)) for view in eyes())
    image = scene.draw((views[0], views[1]))
    black = image.max(-1) == 0
    assert black[:, :, : SIZE // 4].all() and not black[:, :, SIZE // 4 :].any()


def test_of_too_many_triangles_the_rest_hides_nothing(scene: Scene) -> None:
    mask = strip(eyes()[0].fov, 0.5)
    many = replace(mask, indices=np.tile(mask.indices, MAX_TRIANGLES // 2))
    beyond = np.array([0, 1, 3], np.uint32)
    outside = replace(
        many,
        vertices=np.concatenate((mask.vertices, -mask.vertices)),
        indices=np.concatenate((many.indices, beyond + 4)),
    )
    scene.renderer.set_visibility_masks(many, many)
    image = scene.draw()
    assert image[:, :, : SIZE // 2].max() == 0
    scene.renderer.set_visibility_masks(outside, outside)
    np.testing.assert_array_equal(scene.draw(), image)


def test_a_mask_without_triangles_hides_nothing_and_a_broken_one_is_refused(scene: Scene) -> None:
    before, good = scene.draw(), strip(eyes()[0].fov, 0.25)
    empty = Triangles(np.zeros((0, 2), np.float32), np.zeros(0, np.uint32))
    scene.renderer.set_visibility_masks(empty, empty)
    np.testing.assert_array_equal(scene.draw(), before)
    for broken, reason in (
        (replace(good, indices=good.indices[:-1]), "indices must be integers"),
        (replace(good, indices=good.indices + 1), "below 4"),
        (replace(good, indices=good.indices.astype(np.float32)), "indices must be integers"),
        (replace(good, vertices=good.vertices * np.float32(math.nan)), "finite"),
        (replace(good, vertices=good.vertices.ravel()), "finite"),
    ):
        with pytest.raises(ValueError, match=reason):
            scene.renderer.set_visibility_masks(good, broken)
    np.testing.assert_array_equal(scene.draw(), before)


def test_hands_panels_and_masks_create_no_object(gpu: Gpu, scene: Scene) -> None:
    shift = Pose((0.05, 0.02, 0.1), AHEAD)
    poses, masks = DEFAULT, [strip(eyes()[0].fov, share) for share in (0.1, 0.2, 0.3)]
    before = gpu.objects_created
    for mask in masks:
        poses = [compose(pose, shift) for pose in poses]
        scene.renderer.set_panels(poses, (0.0, AIMED, 0.0, HELD))
        scene.renderer.set_hands((AWAY, Hand(grip=GRIP, aim=GRIP)))
        scene.renderer.set_visibility_masks(mask, None)
        scene.submit(eyes())
    gpu.wait()
    assert gpu.objects_created == before
    gpu.device.create_sampler()
    assert gpu.objects_created == before + 1
