import math
from dataclasses import replace

import numpy as np
import pytest

from app.scene.hud import GPU_BAR, GRAPH, TENANTS, HudState, render_hud
from app.scene.hud_canvas import BAD, GOOD, number
from app.scene.hud_curve import CURVE
from app.scene.panels import CAPTIONS
from app.scene.text import caption_image, fit, text_surface, text_width

BUSY = HudState(
    frame_ms=[11.0, 11.2, 22.4, 11.1] * 60,
    period_ms=11.1,
    missed=60,
    missed_recent=[False, False, True, False] * 60,
    missed_per_1000=250.0,
    chunks=8,
    policy="deadline",
    job="both",
    training=True,
    train_steps=1234,
    steps_per_s=12.5,
    loss=0.0123,
    camera_db=21.0,
    held_out=[(0, 20.0), (10**9, 20.5), (2 * 10**9, 23.0)],
    infer_ms=6.3,
    camera="photos",
    camera_age_ms=12.0,
    adapter="some adapter",
)


def graph(state: HudState) -> np.ndarray:
    x, y, width, height = (round(edge) for edge in GRAPH)
    return render_hud(state)[y : y + height, x : x + width]


def reds(image: np.ndarray) -> int:
    return int((image[..., :3] == BAD).all(-1).sum())


@pytest.mark.parametrize("size", [(1280, 400), (640, 200), (900, 500)])
def test_hud_has_the_size_asked_for_and_round_corners(size: tuple[int, int]) -> None:
    image = render_hud(BUSY, size)
    assert image.shape == (size[1], size[0], 4) and image.dtype == np.uint8
    assert image[0, 0, 3] == 0 and image[size[1] // 2, size[0] // 2, 3] > 200
    assert image[..., :3].max() > 200


def test_missed_frames_are_red_and_others_are_not() -> None:
    assert reds(graph(BUSY)) > 1000
    assert reds(graph(replace(BUSY, missed_recent=[False] * 240))) == 0


def gpu_bar(**shares: float) -> dict[str, int]:
    """Pixels of each tenant's colour in a row of the GPU's bar, above the labels."""
    x, y, width, _ = (round(edge) for edge in GPU_BAR)
    row = render_hud(replace(BUSY, gpu_share=shares))[y + 2, x : x + width, :3]
    return {name: int((row == colour).all(-1).sum()) for name, colour in TENANTS.items()}


def test_the_gpu_bar_is_shared_out() -> None:
    _, _, width, _ = GPU_BAR
    pixels = gpu_bar(render=0.5, train=0.25)
    assert pixels["render"] == pytest.approx(0.5 * width, abs=14)  # round corners
    assert pixels["train"] == pytest.approx(0.25 * width, abs=14)
    assert pixels["infer"] == 0
    # Shares that add up to more, as times of different windows may, never leave the bar.
    crowded = gpu_bar(render=1.0, train=0.5, infer=0.5)
    assert crowded["render"] == pytest.approx(0.5 * width, abs=14)
    assert crowded["infer"] == pytest.approx(0.25 * width, abs=14)


def test_only_the_newest_frames_are_drawn_and_flags_stay_beside_their_frames() -> None:
    long = replace(BUSY, frame_ms=[50.0] * 500 + list(BUSY.frame_ms))
    np.testing.assert_array_equal(graph(long), graph(BUSY))
    one = replace(BUSY, frame_ms=[11.0] * 240, missed_recent=[True])
    late = np.argwhere((graph(one)[..., :3] == BAD).all(-1))[:, 1]
    assert late.size and late.min() > 0.98 * GRAPH[2] - 10


def test_the_curve_rises_above_the_line_of_before_when_learning_helps() -> None:
    x, y, width, height = (round(edge) for edge in CURVE)

    def rows(last_db: float) -> np.ndarray:
        """Rows of the newest quarter of the curve, below the labels."""
        points = [(ns, 20.0 + (last_db - 20.0) * ns / 100) for ns in range(101)]
        image = render_hud(replace(BUSY, held_out=points))
        part = image[y + 34 : y + height, x + 3 * width // 4 : x + width, :3]
        return np.argwhere((part == GOOD).all(-1))[:, 0]

    assert rows(25.0).max() < height / 4 < height / 3 < rows(15.0).min()


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_note": "random encoder, not DINOv3"},
        {"message": "saved checkpoint"},
        {"recording": True},
        {"training": False},
        {"chunks": 4},
        {"in_flight": 2},
        {"policy": "fixed"},
        {"job": "train"},
        {"loss": math.nan},
        {"camera_db": 30.0},
        {"before": True},
        {"held_out": [(0, 20.0), (10**9, 21.5), (2 * 10**9, 23.0)]},
        {"held_out": ()},
        {"infer_ms": None},
        {"gpu_share": {"render": 0.5, "train": 0.2}},
        {"camera_age_ms": None},
        {"adapter": "another adapter"},
        {"help_lines": ("1-8  chunk count", "Esc  quit")},
        {"missed": 0},
        {"steps_per_s": 1.0},
        {"train_steps": 9},
    ],
)
def test_every_field_shows(change: dict) -> None:
    before, after = render_hud(BUSY), render_hud(replace(BUSY, **change))
    assert (before != after).any(-1).sum() > 20


@pytest.mark.parametrize("before, after", [(0.00712, 0.00713), (3.1e-9, 3.2e-9), (1e9, 1.1e9)])
def test_tiles_show_every_digit(before: float, after: float) -> None:
    for field in ("loss", "camera_db", "infer_ms", "steps_per_s"):
        images = [render_hud(replace(BUSY, **{field: value})) for value in (before, after)]
        assert (images[0] != images[1]).any()


def test_the_encoder_note_is_large_and_bright() -> None:
    note = render_hud(
        replace(BUSY, encoder_is_random=True, encoder_note="random encoder, not DINOv3")
    )[:70, 700:]
    amber = (note[..., 0] > 240) & (note[..., 1] > 170) & (note[..., 2] < 120)
    assert amber.sum() > 8000


def test_help_covers_the_dashboard_without_hiding_lines() -> None:
    lines = [f"{key}  does something" for key in "ABCDEFGHIJKLMNOP"]
    image = render_hud(replace(BUSY, help_lines=lines))
    assert reds(image) == 0
    for dropped in range(len(lines)):
        fewer = [*lines[:dropped], "", *lines[dropped + 1 :]]
        assert (render_hud(replace(BUSY, help_lines=fewer)) != image).any()


@pytest.mark.parametrize(
    "state",
    [
        HudState(),
        replace(BUSY, frame_ms=[math.nan, math.inf, -1.0, 0.0], period_ms=math.nan),
        replace(BUSY, frame_ms=[0.0, 0.0], period_ms=0.0),
        replace(BUSY, frame_ms=[11.0], missed_recent=[True] * 400),
        replace(BUSY, adapter="x" * 4000, message="y" * 4000, encoder_note="z" * 4000),
        replace(BUSY, camera="tab\tnull\0newline\n☃", policy="p" * 300, job="j" * 300),
        replace(BUSY, train_steps=10**12, missed=10**9, steps_per_s=math.inf, loss=-math.inf),
        replace(BUSY, help_lines=["w" * 500] * 60),
        replace(BUSY, held_out=[(5, math.nan), (6, 3.0), (6, -1e9), (6, math.inf)]),
        replace(BUSY, held_out=[(6, 3.0)]),
        replace(BUSY, gpu_share={"render": 0.0, "train": 1e-9, "somebody": 0.1}),
    ],
)
def test_odd_states_are_drawn(state: HudState) -> None:
    assert render_hud(state).shape == (400, 1280, 4)


def test_tiny_hud_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        render_hud(BUSY, (8, 8))


def test_numbers_keep_their_significant_digits() -> None:
    assert [number(x) for x in (None, 0.0, 11.13, 0.00712, 123.4, 1234.5)] == [
        "–", "0", "11.1", "0.00712", "123", "1234",
    ]  # fmt: skip
    assert number(3e-7) == "3.0e-07" and number(-2e9) == "-2.0e+09" and number(math.nan) == "nan"


def test_fit_shortens_to_the_width_and_only_if_needed() -> None:
    assert fit("short", 30, 400) == "short"
    cut = fit("a long line that does not fit", 30, 200)
    assert cut.endswith("…") and 150 < text_width(cut, 30) <= 200
    assert fit("wide", 30, 1) == ""


def test_text_is_antialiased_in_its_colour() -> None:
    surface = text_surface("Camera", 40, (10, 200, 30))
    image = caption_image("Camera", "", (400, 60), (10, 200, 30), (10, 200, 30))
    alpha = image[..., 3]
    assert surface.get_width() > 100 and alpha.max() > 250
    assert np.unique(alpha).size > 16
    assert (image[..., :3] == (10, 200, 30)).all()  # also where it is transparent: no fringe


@pytest.mark.parametrize("caption", CAPTIONS)
def test_captions_fit_without_being_cut(caption) -> None:
    image = caption_image(caption.title, caption.subtitle, (768, 115), (255,) * 3, (128,) * 3)
    for half in (image[:57], image[70:]):
        columns = np.flatnonzero(half[..., 3].max(0))
        assert 0 < columns[0] and columns[-1] < 767 and columns.size > 50
    assert fit(caption.subtitle, 46, 768) == caption.subtitle
