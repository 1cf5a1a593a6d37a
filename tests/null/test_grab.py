"""Panels in the wearer's hands: taken, carried rigidly, left, kept off the head."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.scene import panels as layout
from app.scene.grab import AIMED, HEAD_ROOM_M, HELD, REACH_M, PanelGrab
from app.scene.rigid import IDENTITY, compose, is_rigid, moved, relative, rotate, seen_from, unit
from app.scene.transforms import model_matrix, orientation, rotation
from app.xr.driver import Pose, Quat, Vec3
from app.xr.hands import Hand

CAMERA, PAINTED, COMPONENTS, HUD = range(4)
HEAD: Vec3 = (0.0, 1.6, 0.0)
AWAY = Hand()

coordinate = st.floats(-2, 2)
component = st.floats(-1, 1)
quaternion = (
    st.tuples(component, component, component, component)
    .filter(lambda q: math.hypot(*q) > 0.1)
    .map(unit)
)
poses = st.builds(Pose, st.tuples(coordinate, coordinate, coordinate), quaternion)


def pointing(at: Vec3, origin: Vec3 = (0.15, 1.2, -0.3)) -> Pose:
    """A pose whose -z goes from `origin` through `at`."""
    x, y, z = (at[axis] - origin[axis] for axis in range(3))
    return Pose(origin, orientation(math.atan2(-x, -z), math.atan2(y, math.hypot(x, z))))


def centre(panel: int) -> Vec3:
    return layout.MOVABLE[panel].pose.position


def hand_at(panel: int, grabbing: bool = False) -> Hand:
    """A hand that points at the middle of a panel where it hangs at first, out of its reach."""
    aim = pointing(centre(panel))
    return Hand(grip=Pose(aim.position, IDENTITY.orientation), aim=aim, grabbing=grabbing)


def grabbed(hand: Hand, grabbing: bool = True) -> Hand:
    return replace(hand, grabbing=grabbing)


def taken(left: Hand = AWAY, right: Hand = AWAY) -> PanelGrab:
    """Both hands have just begun to grab."""
    grab = PanelGrab()
    grab.update((grabbed(left, False), grabbed(right, False)), HEAD)
    grab.update((grabbed(left), grabbed(right)), HEAD)
    return grab


def assert_same(pose: Pose, other: Pose) -> None:
    ones = (1.0, 1.0, 1.0)
    np.testing.assert_allclose(model_matrix(pose, ones), model_matrix(other, ones), atol=1e-5)


def distance_to_head(grab: PanelGrab, panel: int, head: Vec3 = HEAD) -> float:
    x, y, z = seen_from(grab.poses[panel], head)
    width, height = layout.MOVABLE[panel].size
    return math.hypot(max(abs(x) - width / 2, 0), max(abs(y) - height / 2, 0), z)


# -- rigid motions --


@given(poses, poses, st.tuples(coordinate, coordinate, coordinate))
def test_composed_poses_move_a_point_as_their_matrices_do(
    outer: Pose, inner: Pose, point: Vec3
) -> None:
    ones = (1.0, 1.0, 1.0)
    matrices = model_matrix(outer, ones) @ model_matrix(inner, ones)
    expected = (matrices @ np.array([*point, 1.0]))[:3]
    np.testing.assert_allclose(moved(compose(outer, inner), point), expected, atol=1e-4)
    np.testing.assert_allclose(moved(outer, moved(inner, point)), expected, atol=1e-4)
    np.testing.assert_allclose(
        rotate(outer.orientation, point), rotation(outer.orientation) @ point, atol=1e-5
    )


@given(poses, poses, st.tuples(coordinate, coordinate, coordinate))
def test_relative_undoes_compose(pose: Pose, frame: Pose, point: Vec3) -> None:
    assert_same(compose(frame, relative(pose, frame)), pose)
    np.testing.assert_allclose(seen_from(pose, moved(pose, point)), point, atol=1e-9)


@pytest.mark.parametrize(
    "pose",
    [
        Pose((0, 0, 0), (0, 0, 0, 0)),
        Pose((0, 0, 0), (0, math.nan, 0, 1)),
        Pose((math.inf, 0, 0), (0, 0, 0, 1)),
    ],
)
def test_what_is_no_rigid_motion_counts_as_not_tracked(pose: Pose) -> None:
    assert not is_rigid(pose)
    grab = taken(left=Hand(grip=pose, aim=pose))
    assert grab.rays == (None, None)
    assert grab.highlights == (0, 0, 0, 0)
    assert grab.poses == PanelGrab().poses


# -- taking --


def test_nothing_moves_and_nothing_is_lit_without_hands() -> None:
    grab = PanelGrab()
    grab.update((AWAY, AWAY), HEAD)
    assert grab.poses == tuple(panel.pose for panel in layout.MOVABLE)
    assert grab.highlights == (0, 0, 0, 0) and grab.rays == (None, None)


@pytest.mark.parametrize("panel", range(4))
def test_the_panel_pointed_at_is_lit_then_held(panel: int) -> None:
    grab, hand = PanelGrab(), hand_at(panel)
    grab.update((AWAY, hand), HEAD)
    assert grab.highlights[panel] == AIMED and sum(grab.highlights) == AIMED
    assert hand.aim is not None
    assert grab.rays[1] == pytest.approx(math.dist(hand.aim.position, centre(panel)))
    grab.update((AWAY, grabbed(hand)), HEAD)
    assert grab.highlights[panel] == HELD and sum(grab.highlights) == HELD
    grab.update((AWAY, hand), HEAD)
    assert sum(grab.highlights) == AIMED


def test_the_nearest_of_two_panels_along_the_ray_is_taken() -> None:
    grab, towards = taken(right=hand_at(HUD)), hand_at(PAINTED)
    grab.update((AWAY, grabbed(towards)), HEAD)  # the HUD now hangs ahead of the picture
    grab.update((towards, AWAY), HEAD)
    assert grab.highlights == (0, 0, 0, AIMED)
    assert towards.aim is not None and grab.rays[0] is not None
    assert grab.rays[0] < math.dist(towards.aim.position, centre(PAINTED)) - 0.3
    grab.update((towards, AWAY), HEAD, hud_visible=False)
    assert grab.highlights == (0, AIMED, 0, 0)


def test_what_is_within_reach_of_the_grip_goes_before_what_the_hand_points_at() -> None:
    x, y, z = centre(CAMERA)
    aim = pointing(centre(COMPONENTS))
    for off, panel in ((REACH_M - 0.01, CAMERA), (REACH_M + 0.01, COMPONENTS)):
        facing = rotate(layout.PICTURES[CAMERA].pose.orientation, (0.0, 0.0, off))
        grip = (x + facing[0], y + facing[1], z + facing[2])
        grab = taken(left=Hand(grip=Pose(grip, IDENTITY.orientation), aim=aim))
        assert grab.highlights[panel] == HELD
        assert (grab.rays[0] == 0) == (panel == CAMERA)


def test_pointing_away_takes_nothing_and_behind_a_panel_it_is_met_from_its_back() -> None:
    backwards = Hand(aim=pointing((0.0, 1.8, 5.0)))
    assert taken(right=backwards).highlights == (0, 0, 0, 0)
    from_behind = Hand(aim=pointing(centre(PAINTED), (0.0, 1.8, -4.0)))
    assert taken(right=from_behind).highlights[PAINTED] == HELD


def test_a_grab_that_began_elsewhere_takes_nothing() -> None:
    grab = PanelGrab()
    beside = Hand(aim=pointing((0.0, 5.0, -1.0)))
    grab.update((AWAY, beside), HEAD)
    grab.update((AWAY, grabbed(beside)), HEAD)
    grab.update((AWAY, hand_at(CAMERA, grabbing=True)), HEAD)
    assert grab.highlights == (AIMED, 0, 0, 0)
    assert grab.poses == PanelGrab().poses


def test_a_hand_that_grabs_from_the_first_frame_on_must_let_go_first() -> None:
    grab = PanelGrab()
    grab.update((AWAY, hand_at(CAMERA, grabbing=True)), HEAD)
    assert HELD not in grab.highlights


# -- carrying --


@given(poses, st.sampled_from(["aim", "grip"]))
def test_a_held_panel_keeps_its_pose_relative_to_the_hand(goal: Pose, by: str) -> None:
    far: Vec3 = (0.0, -50.0, 0.0)  # a head out of the way
    panel = layout.PICTURES[PAINTED]
    start = (
        pointing(centre(PAINTED))
        if by == "aim"
        else Pose(moved(panel.pose, (0.1, 0.2, 0.05)), orientation(0.3, 0.2))
    )
    grab = taken(right=Hand(**{by: start}))
    held = relative(panel.pose, start)
    for frame in (goal, start, goal):
        grab.update((AWAY, Hand(**{by: frame}, grabbing=True)), far)
        assert_same(grab.poses[PAINTED], compose(frame, held))
    grab.update((AWAY, Hand(**{by: start})), far)
    assert_same(grab.poses[PAINTED], compose(goal, held))


def test_two_hands_carry_two_panels_and_share_none() -> None:
    left, right = hand_at(CAMERA), hand_at(COMPONENTS)
    grab = taken(left, right)
    assert grab.highlights == (HELD, 0, HELD, 0)
    shift = Pose((0.1, 0.1, 0.1), IDENTITY.orientation)
    raised = [replace(hand, aim=compose(shift, hand.aim), grabbing=True) for hand in (left, right)]
    grab.update((raised[0], raised[1]), HEAD)
    for panel in (CAMERA, COMPONENTS):
        expected = compose(shift, layout.MOVABLE[panel].pose)
        assert_same(grab.poses[panel], expected)


def test_a_held_panel_cannot_be_taken_by_the_other_hand_until_it_is_left() -> None:
    grab = taken(left=hand_at(PAINTED))
    moving = Hand(aim=pointing((0.3, 1.9, -1.9)), grabbing=True)
    grab.update((hand_at(PAINTED, True), hand_at(PAINTED)), HEAD)
    grab.update((hand_at(PAINTED, True), hand_at(PAINTED, True)), HEAD)
    grab.update((hand_at(PAINTED, True), moving), HEAD)
    assert_same(grab.poses[PAINTED], layout.PICTURES[PAINTED].pose)
    grab.update((hand_at(PAINTED), hand_at(PAINTED)), HEAD)
    grab.update((hand_at(PAINTED), hand_at(PAINTED, True)), HEAD)
    grab.update((hand_at(PAINTED), moving), HEAD)
    assert math.dist(grab.poses[PAINTED].position, centre(PAINTED)) > 0.1


@pytest.mark.parametrize("giver", [0, 1])
def test_a_panel_can_change_hands_within_a_frame(giver: int) -> None:
    def both(gives: Hand, takes: Hand) -> tuple[Hand, Hand]:
        return (gives, takes) if giver == 0 else (takes, gives)

    grab = taken(*both(hand_at(HUD), AWAY))
    grab.update(both(hand_at(HUD, True), hand_at(HUD)), HEAD)
    grab.update(both(hand_at(HUD), hand_at(HUD, True)), HEAD)
    aside = Hand(aim=pointing((1.0, 1.0, -1.0)), grabbing=True)
    grab.update(both(AWAY, aside), HEAD)
    assert math.dist(grab.poses[HUD].position, centre(HUD)) > 0.2


def test_both_hands_at_once_at_one_panel_leave_it_to_the_left() -> None:
    grab = taken(hand_at(PAINTED), hand_at(PAINTED))
    still = hand_at(PAINTED, True)
    grab.update((still, Hand(aim=pointing((2.0, 2.0, -1.0)), grabbing=True)), HEAD)
    assert_same(grab.poses[PAINTED], layout.PICTURES[PAINTED].pose)


def test_a_lost_hand_leaves_the_panel_and_carries_it_on_from_there() -> None:
    grab = taken(right=hand_at(CAMERA))
    lost = Hand(grabbing=True)
    grab.update((AWAY, lost), HEAD)
    assert_same(grab.poses[CAMERA], layout.PICTURES[CAMERA].pose)
    again = Hand(aim=pointing((0.5, 1.0, -1.0)), grabbing=True)
    grab.update((AWAY, again), HEAD)
    assert_same(grab.poses[CAMERA], layout.PICTURES[CAMERA].pose)
    shift = Pose((0.0, 0.2, 0.0), IDENTITY.orientation)
    grab.update((AWAY, replace(again, aim=compose(shift, again.aim))), HEAD)
    assert_same(grab.poses[CAMERA], compose(shift, layout.PICTURES[CAMERA].pose))
    grab.update((AWAY, AWAY), HEAD)
    assert_same(grab.poses[CAMERA], compose(shift, layout.PICTURES[CAMERA].pose))
    assert grab.highlights == (0, 0, 0, 0)


def test_reset_hangs_everything_back_and_drops_what_is_held() -> None:
    grab = taken(right=hand_at(HUD))
    aside = Hand(aim=pointing((1.0, 1.0, -1.0)), grabbing=True)
    grab.update((AWAY, aside), HEAD)
    assert math.dist(grab.poses[HUD].position, centre(HUD)) > 0.2
    grab.reset()
    assert grab.poses == PanelGrab().poses and grab.highlights == (0, 0, 0, 0)
    grab.update((AWAY, hand_at(HUD, True)), HEAD)
    grab.update((AWAY, aside), HEAD)
    assert grab.poses == PanelGrab().poses


def test_a_hidden_hud_is_neither_taken_nor_kept() -> None:
    grab = taken(right=hand_at(HUD))
    grab.update((AWAY, hand_at(HUD, True)), HEAD, hud_visible=False)
    assert grab.highlights == (0, 0, 0, 0) and grab.rays[1] is None
    grab.update((AWAY, hand_at(HUD)), HEAD, hud_visible=False)
    grab.update((AWAY, hand_at(HUD, True)), HEAD, hud_visible=False)
    assert grab.highlights == (0, 0, 0, 0)


# -- the head --


@pytest.mark.parametrize("step", [0.02, 0.2, 3.0])
def test_a_panel_pulled_at_the_head_stops_ahead_of_it_and_follows_back(step: float) -> None:
    aim = pointing(centre(PAINTED), (0.0, 1.4, -0.4))
    grab = taken(right=Hand(aim=aim))
    pulled = 0.0
    while pulled < 3.0:
        pulled += step
        back = compose(Pose((0.0, 0.0, pulled), IDENTITY.orientation), aim)
        grab.update((AWAY, Hand(aim=back, grabbing=True)), HEAD)
        assert distance_to_head(grab, PAINTED) >= HEAD_ROOM_M - 1e-6
        assert grab.poses[PAINTED].position[2] < -0.9 * HEAD_ROOM_M
    before = grab.poses[PAINTED].position
    forward = compose(Pose((0.0, 0.0, pulled - 0.5), IDENTITY.orientation), aim)
    grab.update((AWAY, Hand(aim=forward, grabbing=True)), HEAD)
    assert grab.poses[PAINTED].position[2] == pytest.approx(before[2] - 0.5)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(poses, poses), min_size=1, max_size=6),
    st.tuples(coordinate, coordinate, coordinate),
)
def test_wherever_hands_go_no_part_of_a_carried_panel_is_in_the_head(
    path: list[tuple[Pose, Pose]], head: Vec3
) -> None:
    grab = taken(hand_at(CAMERA), hand_at(HUD))
    for left, right in path:
        hands = (Hand(aim=left, grabbing=True), Hand(aim=right, grabbing=True))
        grab.update(hands, head)
        for panel in (CAMERA, HUD):
            assert distance_to_head(grab, panel, head) >= HEAD_ROOM_M - 1e-6
            assert math.hypot(*grab.poses[panel].orientation) == pytest.approx(1)
    for panel in (PAINTED, COMPONENTS):
        assert grab.poses[panel] == layout.MOVABLE[panel].pose


@given(st.floats(0, 2 * math.pi), st.floats(0, 2 * math.pi))
def test_turned_in_the_hand_slowly_a_near_panel_never_jumps(first: float, turn: float) -> None:
    """A panel half a metre ahead, held by its middle and turned about the upright."""
    turning: list[Quat] = [orientation(first + turn * part / 200, 0.0) for part in range(201)]
    middle: Vec3 = (0.0, 1.6, -0.5)
    grab = taken(right=Hand(grip=Pose(centre(CAMERA), turning[0])))
    x, y, z = (middle[axis] - centre(CAMERA)[axis] for axis in range(3))
    for part in range(1, 51):
        at = tuple(centre(CAMERA)[a] + (x, y, z)[a] * part / 50 for a in range(3))
        grip = Pose((at[0], at[1], at[2]), turning[0])
        grab.update((AWAY, Hand(grip=grip, grabbing=True)), HEAD)
    last = grab.poses[CAMERA].position
    for facing in turning:
        grab.update((AWAY, Hand(grip=Pose(middle, facing), grabbing=True)), HEAD)
        assert math.dist(grab.poses[CAMERA].position, last) < 0.06
        last = grab.poses[CAMERA].position
