from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import BLUE, GREEN, RED, close_to, solid, write

from app.camera import CameraError, open_camera
from app.camera.folder import SECONDS_PER_IMAGE, ImageFolder
from app.camera.opencv import VideoFile
from app.camera.photo_walk import FADE_SECONDS, SECONDS_PER_PHOTO, Motion, PhotoWalk, _sample
from assets import photos_dir

# --- photo walk ---


@pytest.fixture
def walk() -> Iterator[PhotoWalk]:
    source = PhotoWalk(photos_dir() / "train", 48, seed=3)
    yield source
    source.close()


def test_walk_depends_only_on_time_and_seed(walk: PhotoWalk) -> None:
    times = [0.0, 7.3, 5.4, 0.7, 5 * 155 + 2.0]
    images = [walk.image_at(t) for t in times]
    again = PhotoWalk(photos_dir() / "train", 48, seed=3)
    for t, image in reversed(list(zip(times, images, strict=True))):
        assert np.array_equal(again.image_at(t), image)
    other = PhotoWalk(photos_dir() / "train", 48, seed=4)
    assert not np.array_equal(other.image_at(0.0), images[0])
    again.close()
    other.close()


def test_walk_reads_one_frame_time_after_the_other(walk: PhotoWalk) -> None:
    images = [walk.read() for _ in range(3)]
    for k, image in enumerate(images):
        assert image.shape == (48, 48, 3) and image.dtype == np.uint8
        assert np.array_equal(image, walk.image_at(k / walk.fps))


def test_walk_is_continuous_and_moves(walk: PhotoWalk) -> None:
    dt, t = 1e-3, SECONDS_PER_PHOTO
    for start in (0.0, 2.0, t - dt / 2, t + 0.6, t + FADE_SECONDS - dt / 2, 2 * t - dt / 2):
        here, there = walk.image_at(start).astype(int), walk.image_at(start + dt).astype(int)
        assert np.abs(here - there).mean() < 0.6, start
        later = walk.image_at(start + 1.0).astype(int)
        assert np.abs(here - later).mean() > 1.0, start


def test_walk_fades_from_one_photo_to_the_next(tmp_path: Path) -> None:
    write(tmp_path / "a.png", solid((0, 0, 0)))
    write(tmp_path / "b.png", solid((200, 200, 200)))
    walk = PhotoWalk(tmp_path, 8)
    levels = [int(walk.image_at(SECONDS_PER_PHOTO + f)[0, 0, 0]) for f in np.linspace(0, 1.2, 7)]
    levels = levels if levels[0] == 0 else [200 - level for level in levels]
    assert levels == sorted(levels)
    assert (levels[0], levels[3], levels[-1]) == (0, 100, 200)
    walk.close()


@given(
    st.integers(0, 2**31), st.integers(0, 10**6), st.floats(0, 1),
    st.integers(1, 5000), st.integers(1, 5000),
)  # fmt: skip
@settings(deadline=None)
def test_crop_lies_inside_the_photo(
    seed: int, slot: int, progress: float, width: int, height: int
) -> None:
    left, top, side = Motion.draw(seed, slot).crop(progress, width, height)
    short = min(width, height)
    assert 0.6 * short <= side <= short
    slack = 1e-9 * max(width, height)
    assert -slack <= left and left + side <= width + slack
    assert -slack <= top and top + side <= height + slack


def test_sampling_places_the_crop_exactly_and_keeps_the_aspect() -> None:
    y, x = np.mgrid[0:100, 0:160]
    photo = np.stack([x, y, np.zeros_like(x)], axis=2).astype(np.uint8)
    left, top, side, size = 40.25, 10.5, 64.0, 16
    image = _sample(photo, left, top, side, size).astype(float)
    centres = (np.arange(size) + 0.5) * side / size - 0.5
    assert np.abs(image[:, :, 0] - (left + centres)[None, :]).max() <= 1
    assert np.abs(image[:, :, 1] - (top + centres)[:, None]).max() <= 1


@pytest.mark.parametrize("shape", [(1, 1), (1, 700), (700, 1), (3, 2), (90, 1000), (1000, 90)])
def test_walk_takes_any_shape(tmp_path: Path, shape: tuple[int, int]) -> None:
    write(tmp_path / "a.png", solid(GREEN, *shape))
    walk = PhotoWalk(tmp_path, 16)
    for t in (0.0, 4.9, 5.5, 11.0):
        assert close_to(walk.image_at(t), GREEN, 1)
    walk.close()


def test_walk_replaces_a_bad_photo(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.png").write_bytes(b"no png")
    write(tmp_path / "b.png", solid(RED))
    write(tmp_path / "c.png", solid(RED))
    walk = PhotoWalk(tmp_path, 8)
    for slot in range(9):
        assert close_to(walk.image_at(SECONDS_PER_PHOTO * slot + 3), RED, 1)
    assert len(caplog.records) == 1
    walk.close()


# --- folder ---


def shown(source: ImageFolder, count: int) -> list[np.ndarray]:
    """The first image of each showing, checking that it stays for the whole showing."""
    images = []
    for _ in range(count):
        showing = [source.read() for _ in range(round(SECONDS_PER_IMAGE * source.fps))]
        assert all(np.array_equal(image, showing[0]) for image in showing)
        images.append(showing[0])
    return images


def test_folder_shows_images_in_name_order_skipping_bad_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "Bilder ü 写真"
    folder.mkdir()
    (folder / "0.jpg").write_bytes(b"")
    write(folder / "1.png", solid(RED, 1, 1))
    whole = write(
        folder / "2.png", np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    )
    whole.write_bytes(whole.read_bytes()[:300])
    write(folder / "3.png", solid(GREEN, 40, 4))
    write(folder / "4.png", np.full((5, 9), 77, np.uint8))
    write(folder / "5.png", solid(BLUE, 4, 40))
    source = open_camera(str(folder), size=12)
    assert isinstance(source, ImageFolder)
    images = shown(source, 9)
    for image, colour in zip(images, [RED, GREEN, (77, 77, 77), BLUE] * 2 + [RED], strict=False):
        assert image.shape == (12, 12, 3) and close_to(image, colour, 1)
    assert len(caplog.records) == 2
    source.close()


def test_a_single_image_is_a_camera(tmp_path: Path) -> None:
    source = open_camera(str(write(tmp_path / "a.png", solid(BLUE))), size=8)
    image = source.read()
    assert image is not None and close_to(image, BLUE, 0)
    source.close()


# --- video ---


def write_video(path: Path, colours: list[tuple[int, int, int]]) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 12, (64, 48))
    assert writer.isOpened()
    for colour in colours:
        writer.write(solid(colour[::-1], 48, 64))
    writer.release()
    return path


def test_video_plays_at_its_own_rate_and_loops(tmp_path: Path) -> None:
    source = open_camera(str(write_video(tmp_path / "clip.avi", [RED, GREEN, BLUE])))
    assert source.fps == pytest.approx(12)
    for k in range(8):
        image = source.read()
        assert image is not None and image.shape == (48, 64, 3)
        assert close_to(image, (RED, GREEN, BLUE)[k % 3]), k
    source.close()
    source.close()


def test_video_that_vanishes_while_playing_is_an_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.avi", [RED])
    source = VideoFile(path)
    source.read()
    path.unlink()
    with pytest.raises(CameraError, match="cannot play"):
        source.read()
    write_video(path, [GREEN])
    assert close_to(source.read(), GREEN)
    source.close()


# --- the text given to --camera ---


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("foo", "unknown camera 'foo': use photos, webcam:N, a video file or a folder of images"),
        ("", "unknown camera '': use photos"),
        ("webcam", "unknown webcam 'webcam': use webcam:N, the first is webcam:0"),
        ("webcam:x", "unknown webcam 'webcam:x': use webcam:N"),
        ("webcam:-1", "unknown webcam 'webcam:-1': use webcam:N"),
        ("webcam:987", "webcam:987 does not open: connect it"),
        ("no/such", "camera path 'no/such' does not exist: use photos"),
        ("clip.mp4", "camera path 'clip.mp4' does not exist: use photos"),
        ("nul\0.mp4", "does not exist"),
    ],
)
def test_what_cannot_be_opened_says_what_to_do(
    spec: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CameraError) as caught:
        open_camera(spec)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_files_and_folders_that_are_no_camera(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("clip.mp4", "clip1.dat", "clip.avi", "empty.mkv"):
        (tmp_path / name).write_bytes(b"" if name == "empty.mkv" else b"not a video " * 99)
        with pytest.raises(CameraError, match=r"cannot play '.*': convert it"):
            open_camera(str(tmp_path / name))
    with pytest.raises(CameraError, match=r"no images in '.*': put"):
        open_camera(str(tmp_path))
    assert capfd.readouterr().err == ""
    (tmp_path / "a.jpg").write_bytes(b"no jpeg")
    (tmp_path / "b.bmp").write_bytes(b"")
    with pytest.raises(CameraError, match=r"none of the 2 images in '.*' can be decoded"):
        open_camera(str(tmp_path))


def test_photos_and_numbered_webcams_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = open_camera("photos", size=16, seed=2)
    image = walk.read()
    assert walk.name == "photos" and image is not None and image.shape == (16, 16, 3)
    walk.close()
    monkeypatch.setattr("app.camera.open.Webcam", lambda index: ("webcam", index))
    assert open_camera("webcam:1") == ("webcam", 1)
