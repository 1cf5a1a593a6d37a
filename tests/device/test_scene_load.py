"""The render load: a haze of as many samples as asked for, and nothing at all at 0."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.scene import pipelines
from app.scene.load import MAX_LOAD
from app.scene.renderer import BufferRange, PanelSources, SceneRenderer
from app.scene.shaders import load_shader
from app.xr.driver import Fov, Pose, Quat, View
from engine.gpu import Gpu

WIDTH, HEIGHT = 64, 48
ANGLE = math.radians(48)
FOV = Fov(-ANGLE, ANGLE, ANGLE, -ANGLE)
AHEAD: Quat = (0.0, 0.0, 0.0, 1.0)
BEHIND: Quat = (0.0, 1.0, 0.0, 0.0)
COLOURS = ((0.8, 0.4, 0.1), (0.2, 0.7, 0.9), (0.5, 0.2, 0.8))


class Room:
    """A renderer whose pictures are one colour each."""

    def __init__(self, gpu: Gpu, samples: int = 4) -> None:
        self.gpu = gpu
        self.painted = gpu.storage_buffer(224 * 224 * 12)
        self.components = gpu.storage_buffer(14 * 14 * 12)
        self.renderer = SceneRenderer(
            gpu.device,
            (WIDTH, HEIGHT),
            PanelSources(
                BufferRange(self.painted, 0, 224 * 224 * 12),
                BufferRange(self.components, 0, 14 * 14 * 12),
            ),
            samples=samples,
        )
        self.light(*COLOURS)

    def light(self, *colours: tuple[float, float, float]) -> None:
        camera = np.full((224, 224, 3), np.array(colours[0]) * 255, np.uint8)
        self.renderer.set_camera(camera)
        for buffer, side, colour in (
            (self.painted, 224, colours[1]),
            (self.components, 14, colours[2]),
        ):
            image = np.full((side, side, 3), colour, np.float32)
            self.gpu.queue.write_buffer(buffer, 0, image)

    def submit(self, load: int, facing: Quat = AHEAD, height: float = 1.6) -> None:
        self.renderer.load = load
        view = View(Pose((0.0, height, 0.0), facing), FOV)
        self.renderer.set_views((view, view))
        encoder = self.gpu.device.create_command_encoder()
        self.renderer.encode(encoder)
        self.gpu.submit(encoder)

    def draw(self, load: int, facing: Quat = AHEAD, height: float = 1.6) -> np.ndarray:
        """Both eyes, [HEIGHT, 2 * WIDTH, 3] as int."""
        self.submit(load, facing, height)
        data = self.gpu.queue.read_texture(
            {"texture": self.renderer.eyes}, {"bytes_per_row": 8 * WIDTH}, (2 * WIDTH, HEIGHT, 1)
        )
        return np.frombuffer(data, np.uint8).reshape(HEIGHT, 2 * WIDTH, 4)[..., :3].astype(int)


@pytest.fixture(scope="module")
def room(gpu: Gpu) -> Room:
    return Room(gpu)


@pytest.mark.parametrize("samples", [1, 4])
def test_no_load_leaves_the_picture_as_it_is_without_haze(
    gpu: Gpu, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_haze(*names: str) -> str:
        code = load_shader(*names)
        if "haze" not in names:
            return code
        before, branch, after = code.partition("    if eye.haze_samples > 0.0 {")
        assert branch
        return before + after.partition("    }\n")[2]

    hazy = Room(gpu, samples)
    monkeypatch.setattr(pipelines, "load_shader", without_haze)
    clear = Room(gpu, samples)
    for facing in (AHEAD, BEHIND):
        np.testing.assert_array_equal(hazy.draw(0, facing), clear.draw(0, facing))
    np.testing.assert_array_equal(clear.draw(32), clear.draw(0))
    assert (hazy.draw(32) != clear.draw(32)).mean() > 0.3


def test_the_load_can_be_switched_off_again(room: Room) -> None:
    before = room.draw(0)
    assert (room.draw(16) != before).any()
    np.testing.assert_array_equal(room.draw(0), before)


def test_the_picture_is_nearly_alike_for_every_load(room: Room) -> None:
    clear, few, many, most = room.draw(0), room.draw(16), room.draw(64), room.draw(1000)
    assert abs(many - clear).mean() > 3
    assert abs(few - many).mean() < 0.6
    assert abs(many - most).mean() < 0.1
    assert abs(few.mean() - most.mean()) < 0.2


def test_the_haze_brightens_what_the_pictures_light(room: Room) -> None:
    clear, hazy = room.draw(0), room.draw(32)
    assert (hazy - clear).min() >= -2  # the dither scales with the brightness
    assert hazy.mean() > clear.mean() + 3
    # Light scatters onwards: looking away from the pictures, the mist is darker.
    behind = room.draw(32, BEHIND).mean() - room.draw(0, BEHIND).mean()
    assert 0 < behind < 0.5 * (hazy.mean() - clear.mean())


def test_the_haze_has_the_colour_of_the_pictures_and_none_without_light(room: Room) -> None:
    dark = (0.0, 0.0, 0.0)
    try:
        room.light(dark, dark, dark)
        np.testing.assert_array_equal(room.draw(32), room.draw(0))
        room.light((1.0, 0.0, 0.0), dark, dark)
        gain = (room.draw(32) - room.draw(0)).mean((0, 1))
    finally:
        room.light(*COLOURS)
    assert gain[0] > 1 and abs(gain[1:]).max() < 0.3


def test_every_view_gets_numbers(room: Room) -> None:
    """Looking down, up, from the floor and from below it."""
    half = math.sqrt(0.5)
    for height in (1.6, 0.0, -1.0):
        for facing in (AHEAD, (half, 0.0, 0.0, half), (-half, 0.0, 0.0, half)):
            # A NaN is written as 0, darker than the room.
            gain = room.draw(16, facing, height) - room.draw(0, facing, height)
            assert gain.min() >= -2


def test_changing_the_load_creates_no_object(room: Room) -> None:
    before = room.gpu.objects_created
    for load in (0, 1, 8, 3, 0):
        room.submit(load)
    room.gpu.wait()
    assert room.gpu.objects_created == before
    room.gpu.device.create_sampler()
    assert room.gpu.objects_created == before + 1


def test_an_impossible_load_is_refused_and_the_old_one_stays(room: Room) -> None:
    room.renderer.load = MAX_LOAD
    for load in (-1, MAX_LOAD + 1):
        with pytest.raises(ValueError, match=f"0 to {MAX_LOAD} samples per pixel, got {load}"):
            room.renderer.load = load
    assert room.renderer.load == MAX_LOAD
    room.renderer.load = 0
