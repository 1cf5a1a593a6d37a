"""Principal components against NumPy's decompositions, and their continuity in time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from app.components import ComponentFinder, Projection, principal_projection

WIDTH = 384
TOKENS = 196


def tokens_with(
    rng: np.random.Generator, deviations: tuple[float, ...], noise: float = 0.01
) -> np.ndarray:
    """Tokens that vary by `deviations` along random orthogonal directions around a mean."""
    directions, _ = np.linalg.qr(rng.standard_normal((WIDTH, len(deviations))))
    weights = rng.standard_normal((TOKENS, len(deviations))) * deviations
    tokens = weights @ directions.T + rng.standard_normal(WIDTH)
    return (tokens + noise * rng.standard_normal(tokens.shape)).astype(np.float32)


def projected(tokens: np.ndarray, projection: Projection) -> np.ndarray:
    return tokens @ projection.basis.T + projection.offset


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_directions_are_those_of_svd_and_covariance(rng: np.random.Generator) -> None:
    tokens = tokens_with(rng, (5, 3, 2, 1, 0.5))
    basis = unit(principal_projection(tokens).basis.astype(np.float64))
    centred = tokens - tokens.mean(axis=0, dtype=np.float64)
    _, _, rows = np.linalg.svd(centred, full_matrices=False)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    for index in range(3):
        assert abs(basis[index] @ rows[index]) > 1 - 1e-6
        assert abs(basis[index] @ vectors[:, -1 - index]) > 1 - 1e-6


def test_directions_with_a_slowly_falling_spectrum(rng: np.random.Generator) -> None:
    tokens = tokens_with(rng, tuple(4 * 0.8**n for n in range(30)))
    basis = unit(principal_projection(tokens).basis.astype(np.float64))
    centred = tokens - tokens.mean(axis=0, dtype=np.float64)
    rows = np.linalg.svd(centred, full_matrices=False)[2][:3]
    assert np.linalg.svd(basis @ rows.T)[1].min() > 1 - 1e-4


def test_two_deviations_span_the_colours(rng: np.random.Generator) -> None:
    tokens = tokens_with(rng, (50, 3, 2))
    colours = projected(tokens, principal_projection(tokens))
    assert colours.mean(axis=0) == pytest.approx(0.5, abs=1e-3)
    assert colours.std(axis=0) == pytest.approx(0.25, rel=1e-3)


def test_the_previous_order_and_signs_are_kept(rng: np.random.Generator) -> None:
    tokens = tokens_with(rng, (5, 3, 2))
    first = principal_projection(tokens)
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        for signs in ((1, 1, 1), (-1, 1, -1), (-1, -1, -1)):
            previous = first.basis[order] * np.array(signs, np.float32)[:, None]
            again = principal_projection(tokens, previous)
            assert np.allclose(again.basis, previous, atol=1e-5)


def test_colours_stay_when_two_variances_change_places(rng: np.random.Generator) -> None:
    directions, _ = np.linalg.qr(rng.standard_normal((WIDTH, 3)))
    weights = rng.standard_normal((TOKENS, 3))
    last: np.ndarray | None = None
    basis = None
    for step in np.linspace(0, 1, 21):
        scale = np.array([3 - step, 2 + step, 1])  # the first two cross half-way
        tokens = (weights * scale) @ directions.T + 0.001 * rng.standard_normal((TOKENS, WIDTH))
        projection = principal_projection(tokens.astype(np.float32), basis)
        colours = projected(tokens, projection)
        if last is not None:
            for now, before in zip(colours.T, last.T, strict=True):
                assert np.corrcoef(now, before)[0, 1] > 0.5
        basis, last = projection.basis, colours


def test_zeros_as_previous_basis_mean_none(rng: np.random.Generator) -> None:
    tokens = tokens_with(rng, (5, 3, 2))
    fresh = principal_projection(tokens)
    again = principal_projection(tokens, np.zeros((3, WIDTH), np.float32))
    assert np.array_equal(fresh.basis, again.basis)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_equal_tokens_are_shown_flat(noise: float, rng: np.random.Generator) -> None:
    tokens = np.tile(rng.standard_normal(WIDTH), (TOKENS, 1))
    tokens = (tokens + noise * rng.standard_normal(tokens.shape)).astype(np.float32)
    for previous in (None, principal_projection(tokens_with(rng, (5, 3, 2))).basis):
        projection = principal_projection(tokens, previous)
        assert projected(tokens, projection) == pytest.approx(0.5, abs=0.01)
    assert not principal_projection(np.zeros((TOKENS, WIDTH), np.float32)).basis.any()


def test_directions_that_do_not_exist_are_shown_flat(rng: np.random.Generator) -> None:
    directions = rng.standard_normal((1, WIDTH))
    tokens = (rng.standard_normal((TOKENS, 1)) @ directions).astype(np.float32)
    colours = projected(tokens, principal_projection(tokens))
    assert sorted(colours.std(axis=0) > 0.01) == [False, False, True]
    assert np.isfinite(colours).all()


def test_finder_takes_each_result_once_and_follows_its_own_basis(
    rng: np.random.Generator,
) -> None:
    tokens = tokens_with(rng, (5, 3, 2))
    finder = ComponentFinder()
    assert finder.take() is None and not finder.busy
    results = []
    for scale in (1, -1):  # mirrored tokens: their directions have any sign
        finder.submit(scale * tokens)
        finder.submit(np.full_like(tokens, np.nan))  # ignored while busy
        while (result := finder.take()) is None:
            assert finder.busy
            time.sleep(0.001)
        results.append(result)
        assert not finder.busy and finder.take() is None
    finder.close()
    assert np.allclose(results[0].basis, results[1].basis, atol=1e-5)
