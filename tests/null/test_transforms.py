import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scene.transforms import (
    model_matrix,
    orientation,
    projection,
    rotation,
    view_matrix,
    view_rays,
)
from app.xr.driver import Fov, Pose

LOPSIDED = Fov(math.radians(-50), math.radians(40), math.radians(45), math.radians(-52))
HALF = math.sqrt(0.5)

coordinate = st.floats(-10, 10, width=32)
component = st.floats(-1, 1, width=32)
quaternion = st.tuples(component, component, component, component).filter(
    lambda q: math.hypot(*q) > 0.1
)
poses = st.builds(Pose, st.tuples(coordinate, coordinate, coordinate), quaternion)


def clip(matrix: np.ndarray, *point: float) -> np.ndarray:
    out = matrix @ np.array([*point, 1], np.float32)
    return out[:3] / out[3]


def test_projection_maps_the_fov_edges_and_planes_to_the_clip_cube() -> None:
    matrix = projection(LOPSIDED, 0.1, 50)
    assert matrix.dtype == np.float32
    for distance, depth in ((0.1, 0.0), (50.0, 1.0)):
        right_top = (math.tan(LOPSIDED.right) * distance, math.tan(LOPSIDED.up) * distance)
        left_down = (math.tan(LOPSIDED.left) * distance, math.tan(LOPSIDED.down) * distance)
        np.testing.assert_allclose(clip(matrix, *right_top, -distance), [1, 1, depth], atol=1e-4)
        np.testing.assert_allclose(clip(matrix, *left_down, -distance), [-1, -1, depth], atol=1e-4)


def test_looking_left_brings_the_left_to_the_centre() -> None:
    left = Pose((1.0, 2.0, 3.0), (0.0, HALF, 0.0, HALF))  # 90 degrees about +y
    np.testing.assert_allclose(
        view_matrix(left) @ np.array([-4, 2, 3, 1]), [0, 0, -5, 1], atol=1e-5
    )


def test_model_matrix_scales_pitches_yaws_and_moves_in_that_order() -> None:
    model = model_matrix(Pose((1, 2, 3), orientation(math.pi / 2, 0)), (2, 4, 6))
    np.testing.assert_allclose(model @ [0, 0, 1, 1], [7, 2, 3, 1], atol=1e-5)
    np.testing.assert_allclose(model @ [0.5, 0.5, 0, 1], [1, 4, 2, 1], atol=1e-5)
    tipped = rotation(orientation(0, -math.pi / 2))
    np.testing.assert_allclose(tipped @ [0, 0, 1], [0, 1, 0], atol=1e-6)
    both = rotation(orientation(math.pi / 2, -math.pi / 2))
    np.testing.assert_allclose(both @ [0, 1, 0], [-1, 0, 0], atol=1e-6)


@given(poses, st.tuples(coordinate, coordinate, coordinate))
def test_view_matrix_inverts_the_pose(pose: Pose, point: tuple[float, float, float]) -> None:
    world = rotation(pose.orientation) @ np.float32(point) + np.float32(pose.position)
    np.testing.assert_allclose(view_matrix(pose) @ [*world, 1], [*point, 1], atol=1e-3)


@given(quaternion)
def test_rotation_is_orthonormal_and_right_handed(turned: tuple) -> None:
    turn = rotation(turned)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-5)
    assert np.linalg.det(turn) == pytest.approx(1, abs=1e-4)


@given(poses, st.tuples(component, component))
def test_a_pixels_ray_projects_back_onto_the_pixel(pose: Pose, ndc: tuple[float, float]) -> None:
    ray = view_rays(pose, LOPSIDED) @ np.array([*ndc, 1], np.float32)
    point = np.float32(pose.position) + 3 * ray
    matrix = projection(LOPSIDED, 0.1, 50) @ view_matrix(pose)
    np.testing.assert_allclose(clip(matrix, *point)[:2], ndc, atol=1e-3)


def test_senseless_input_is_refused() -> None:
    with pytest.raises(ValueError, match="not tracked"):
        rotation((0, 0, 0, 0))
    with pytest.raises(ValueError, match="not tracked"):
        rotation((0, math.nan, 0, 1))
    with pytest.raises(ValueError, match="empty"):
        projection(Fov(0.5, -0.5, 0.5, -0.5), 0.1, 10)
    with pytest.raises(ValueError, match="pi/2"):
        projection(Fov(-1.6, 0.5, 0.5, -0.5), 0.1, 10)
    with pytest.raises(ValueError, match="near"):
        projection(LOPSIDED, 1.0, 1.0)
