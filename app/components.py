"""The first three principal components of the encoder's tokens, found on the host in a thread.

The device projects tokens on a basis with every inference; the host renews the basis about once
a second from a downloaded set of tokens. Signs and order follow the previous basis, so colours
do not jump.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

SUBSPACE = 12
ITERATIONS = 16
"""Errors shrink per iteration by the ratio of the 13th to the wanted variance."""

FLAT = 1e-5
"""A standard deviation below this share of the mean token's length is rounding noise."""


@dataclass(frozen=True)
class Projection:
    """`tokens @ basis.T + offset` lies mostly in 0..1; basis f32 [3, width], offset f32 [3]."""

    basis: np.ndarray
    offset: np.ndarray


def principal_projection(tokens: np.ndarray, previous: np.ndarray | None = None) -> Projection:
    """Projection on the three directions of greatest variance of tokens [n, width].

    Scaled so that two standard deviations around the mean span 0..1. `previous` is an earlier
    basis (rows of any length) whose order and signs are kept as far as the directions agree.
    """
    data = tokens.astype(np.float64)
    mean = data.mean(axis=0)
    directions, deviations = _principal_directions(data - mean)
    if previous is not None and np.any(previous):
        order, signs = _match(directions, previous)
        directions, deviations = directions[order] * signs[:, None], deviations[order]
    # A direction without variance, as under a lens cap, is shown flat, not as amplified noise.
    visible = deviations > FLAT * np.linalg.norm(mean)
    basis = directions * (visible / np.where(visible, 4 * deviations, 1.0))[:, None]
    offset = 0.5 - basis @ mean
    return Projection(basis.astype(np.float32), offset.astype(np.float32))


def _principal_directions(centred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows [3, width] and standard deviations [3], largest first.

    By subspace iteration, not by a full decomposition: that would hold the interpreter for
    longer than a frame may take, while each step here is a fraction of a millisecond.
    """
    start = np.random.default_rng(0).standard_normal((centred.shape[1], SUBSPACE))
    subspace, _ = np.linalg.qr(start)
    for _ in range(ITERATIONS):
        subspace, _ = np.linalg.qr(centred.T @ (centred @ subspace))
    _, singular, rows = np.linalg.svd(centred @ subspace, full_matrices=False)
    return rows[:3] @ subspace.T, singular[:3] / np.sqrt(len(centred))


def _match(directions: np.ndarray, previous: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Greedy assignment of new directions to old ones by |cosine|, with the sign of each."""
    norms = np.linalg.norm(previous, axis=1, keepdims=True)
    cosines = (previous / np.maximum(norms, 1e-12)) @ directions.T
    left = np.abs(cosines)
    order, signs = [0, 0, 0], np.ones(3)
    for _ in range(3):
        old, new = np.unravel_index(np.argmax(left), left.shape)
        order[old] = int(new)
        signs[old] = -1.0 if cosines[old, new] < 0 else 1.0
        left[old, :] = left[:, new] = -1.0
    return order, signs


class ComponentFinder:
    """Runs `principal_projection` in one background thread; newest result only."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="components")
        self._future: Future[Projection] | None = None
        self._basis: np.ndarray | None = None

    @property
    def busy(self) -> bool:
        """Whether a computation is under way or its result is not yet taken."""
        return self._future is not None

    def submit(self, tokens: np.ndarray) -> None:
        """Start on tokens f32 [n, width]; ignored while busy."""
        if self._future is None:
            self._future = self._pool.submit(principal_projection, tokens, self._basis)

    def take(self) -> Projection | None:
        """The finished projection, once; else None."""
        if self._future is None or not self._future.done():
            return None
        result = self._future.result()
        self._future, self._basis = None, result.basis
        return result

    def close(self) -> None:
        """Wait for the thread to end."""
        self._pool.shutdown(wait=True, cancel_futures=True)
