"""Figures of painted images, and their contact sheet."""

import itertools
import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest

from app.evaluate.contact_sheet import Example, contact_sheet
from app.evaluate.metrics import Quality, measure, summarize
from tests.command_line import fails


def noisy(rng: np.random.Generator, amount: float) -> tuple[np.ndarray, np.ndarray]:
    original = np.clip(rng.normal(0.5, 0.15, (32, 32, 3)), 0, 1).astype(np.float32)
    painted = np.clip(original + rng.normal(0, amount, original.shape), 0, 1).astype(np.float32)
    return painted, original


def gaussian_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Wang et al. 2004, equations 12 to 17, written out; windows that lie inside the image only."""
    x, y = x.astype(np.float64), y.astype(np.float64)

    def smooth(image: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(image, (11, 11), 1.5)[5:-5, 5:-5]

    mx, my = smooth(x), smooth(y)
    vx, vy, vxy = smooth(x * x) - mx**2, smooth(y * y) - my**2, smooth(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    values = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return float(values.mean())


def test_figures_are_those_of_their_definitions(rng: np.random.Generator) -> None:
    painted, original = noisy(rng, 0.1)
    quality = measure(painted, original)
    difference = painted.astype(np.float64) - original
    assert quality.mse == pytest.approx((difference**2).mean(), rel=1e-12)
    assert quality.mae == pytest.approx(np.abs(difference).mean(), rel=1e-12)
    assert quality.psnr_db == pytest.approx(-10 * math.log10(quality.mse))
    assert quality.ssim == pytest.approx(gaussian_ssim(painted, original), abs=1e-5)
    assert 0.3 < quality.ssim < 0.95


def test_an_identical_image_is_perfect_and_worse_ones_are_worse(rng: np.random.Generator) -> None:
    _, original = noisy(rng, 0)
    perfect = measure(original, original)
    assert perfect == Quality(0.0, 0.0, pytest.approx(1.0)) and perfect.psnr_db == math.inf
    steps = [measure(*noisy(rng, amount)) for amount in (0.02, 0.1, 0.3)]
    for better, worse in itertools.pairwise(steps):
        assert better.psnr_db > worse.psnr_db and better.ssim > worse.ssim
        assert better.mae < worse.mae


def test_global_psnr_is_of_all_pixels_and_medians_are_over_images() -> None:
    qualities = [Quality(1e-2, 0.3, 0.2), Quality(1e-4, 0.1, 0.9), Quality(1e-3, 0.2, 0.4)]
    summary = summarize(qualities)
    assert summary["images"] == 3
    assert summary["psnr_global_db"] == pytest.approx(-10 * math.log10(0.0111 / 3), abs=1e-4)
    assert summary["psnr_median_db"] == pytest.approx(30)
    assert (summary["ssim_median"], summary["mae_median"]) == (0.4, 0.2)
    assert json.loads(json.dumps(summary)) == summary


def test_an_infinite_psnr_is_null_in_json() -> None:
    summary = summarize([Quality(0.0, 0.0, 1.0)])
    assert summary["psnr_global_db"] is None and summary["psnr_median_db"] is None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_contact_sheet_shows_input_output_and_error(
    count: int, rng: np.random.Generator
) -> None:
    original = np.zeros((16, 16, 3), np.float32)
    original[...] = (0.9, 0.1, 0.1)
    painted = np.zeros_like(original)
    painted[...] = (0.1, 0.1, 0.9)
    name = "a name that is far too long to stand above a picture without being cut somewhere.jpg"
    example = Example(name, original, painted, measure(painted, original))
    data = contact_sheet([example] * count, "title", "subtitle")
    sheet = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), 1), cv2.COLOR_BGR2RGB)
    pixels = sheet.reshape(-1, 3).astype(int)

    def area(colour: tuple[float, float, float]) -> int:
        return int((np.abs(pixels - 255 * np.array(colour)).max(axis=1) <= 3).sum())

    red, blue = area((0.9, 0.1, 0.1)), area((0.1, 0.1, 0.9))
    assert red == pytest.approx(blue, rel=0.03) and red > count * 40_000
    # The error is beyond what is drawn brightest.
    assert area((0.987, 0.991, 0.750)) == pytest.approx(red, rel=0.03)


def test_eval_needs_a_decoder_while_none_ships(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.evaluate.command.decoder_file", lambda: tmp_path / "absent")
    assert "name one with --checkpoint" in fails(capsys, 2, "eval", "--data", str(tmp_path))
    taken = tmp_path / "taken"
    taken.touch()
    line = fails(capsys, 2, "eval", "--data", str(tmp_path), "--out", str(taken))
    assert "is a file: name a folder" in line
