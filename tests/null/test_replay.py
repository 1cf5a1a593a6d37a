from __future__ import annotations

import numpy as np
import pytest

from app.camera import Frame, Image
from app.tenancy.replay import EVERY_NS, THUMBNAIL, Replay


class Camera:
    """A view of its own for every number, which can be told from its image."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._images: list[Image] = []

    def frame(self, number: int, at: float | None = None, noise: int = 0) -> Frame:
        rng = np.random.default_rng(number)
        image = rng.integers(10, 240, (THUMBNAIL, THUMBNAIL, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        if noise:
            image = image + rng.permutation(image.size).reshape(image.shape) % noise - noise // 2
            image = image.astype(np.uint8)
        self._images.append(image)  # keeps its id its own
        self._numbers[id(image)] = number
        return Frame(image, round((number if at is None else at) * EVERY_NS), number)

    def number(self, image: Image) -> int:
        return self._numbers[id(image)]


def picks(replay: Replay, count: int, every: float = 1.0) -> list[int]:
    camera = Camera()
    return [camera.number(replay.pick(camera.frame(n, n * every))) for n in range(count)]


def test_the_first_pick_is_the_only_image_there_is() -> None:
    camera = Camera()
    for seed in range(20):
        assert camera.number(Replay(seed=seed).pick(camera.frame(7))) == 7


def test_only_images_seen_before_and_not_forgotten_are_picked() -> None:
    chosen = picks(Replay(capacity=10), 500)
    assert all(n - 9 <= pick <= n for n, pick in enumerate(chosen))
    # Every remembered age occurs, so old images do come back.
    assert {n - pick for n, pick in enumerate(chosen)} == set(range(10))


def test_shares() -> None:
    assert picks(Replay(newest_share=1.0), 50) == list(range(50))
    count, capacity = 4000, 50
    camera = Camera()
    rehearsed = [camera.frame(count + 1 + n).image for n in range(25)]
    replay = Replay(capacity, 0.25, rehearsed=rehearsed)
    chosen = [camera.number(replay.pick(camera.frame(n))) for n in range(count)]
    newest = sum(pick == n for n, pick in enumerate(chosen)) / count
    assert newest == pytest.approx(0.25 + 0.5 / capacity, abs=0.03)
    again = [pick for pick in chosen if pick > count]
    assert len(again) / count == pytest.approx(0.25, abs=0.03) and len(set(again)) == 25
    # A camera that shows one view from the first frame on gets no more than the newest one's share.
    still = Replay(newest_share=0.25, rehearsed=rehearsed)
    same = sum(camera.number(still.pick(camera.frame(1, n))) == 1 for n in range(count)) / count
    assert same == pytest.approx(0.25 + 0.75 / 26, abs=0.03)


def test_images_are_remembered_twice_a_second() -> None:
    chosen = picks(Replay(capacity=4, newest_share=0.0), 300, 0.1)
    assert {pick % 10 for pick in chosen} == {0}
    assert all(n - pick < 4 * 10 for n, pick in enumerate(chosen))


def test_a_camera_that_stands_still_pushes_nothing_out() -> None:
    camera, replay = Camera(), Replay(capacity=4, newest_share=0.0)
    for number in range(3):
        replay.pick(camera.frame(number))
    # The same view with a sensor's noise, for long; then one seen before.
    still = [camera.number(replay.pick(camera.frame(2, 3 + n, noise=10))) for n in range(400)]
    assert set(still) == {0, 1, 2}
    replay.pick(camera.frame(0, 500))
    replay.pick(camera.frame(9, 501))
    seen = {camera.number(replay.pick(camera.frame(9, 501))) for _ in range(200)}
    assert seen == {0, 1, 2, 9}


def test_a_seed_decides_the_picks() -> None:
    assert picks(Replay(seed=3), 100) == picks(Replay(seed=3), 100)
    assert picks(Replay(seed=3), 100) != picks(Replay(seed=4), 100)
