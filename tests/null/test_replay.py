from __future__ import annotations

import numpy as np
import pytest

from app.camera import Frame
from app.tenancy.replay import EVERY_NS, Replay

IMAGE = np.zeros((2, 2, 3), np.uint8)


def frame(number: int, every_ns: int = EVERY_NS) -> Frame:
    return Frame(IMAGE, number * every_ns, number)


def picks(replay: Replay, count: int, every_ns: int = EVERY_NS) -> list[int]:
    return [replay.pick(frame(n, every_ns)).sequence for n in range(count)]


def test_the_first_pick_is_the_only_image_there_is() -> None:
    for seed in range(20):
        assert Replay(seed=seed).pick(frame(7)).sequence == 7


def test_only_images_seen_before_and_not_forgotten_are_picked() -> None:
    chosen = picks(Replay(capacity=10), 500)
    assert all(n - 9 <= pick <= n for n, pick in enumerate(chosen))
    # Every remembered age occurs, so old images do come back.
    assert {n - pick for n, pick in enumerate(chosen)} == set(range(10))


def test_newest_share() -> None:
    assert picks(Replay(newest_share=1.0), 50) == list(range(50))
    count, share, capacity = 4000, 0.25, 50
    chosen = picks(Replay(capacity, share), count)
    newest = sum(pick == n for n, pick in enumerate(chosen)) / count
    expected = share + (1 - share) / capacity
    assert newest == pytest.approx(expected, abs=0.03)


def test_images_are_remembered_twice_a_second() -> None:
    every_ns = EVERY_NS // 10
    chosen = picks(Replay(capacity=4, newest_share=0.0), 300, every_ns)
    assert {pick % 10 for pick in chosen} == {0}
    assert all(n - pick < 4 * 10 for n, pick in enumerate(chosen))


def test_a_seed_decides_the_picks() -> None:
    assert picks(Replay(seed=3), 100) == picks(Replay(seed=3), 100)
    assert picks(Replay(seed=3), 100) != picks(Replay(seed=4), 100)
