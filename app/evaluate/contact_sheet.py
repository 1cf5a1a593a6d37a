"""A picture of pictures: originals, what the decoder painted, and where they differ."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from app.evaluate.metrics import Quality
from app.report.style import INK, MUTED, PAGE, RC

ACROSS = 2
"""Samples side by side; each takes three images."""
CELL_IN, GAP_IN, CAPTION_IN, HEAD_IN, MARGIN_IN = 1.9, 0.06, 0.26, 0.72, 0.25
DPI = 120
BRIGHTEST = 0.15
"""Mean absolute difference over the channels that is drawn brightest, of the full range."""


@dataclass(frozen=True)
class Example:
    """One image of the sheet; both f32 [size, size, 3] in 0..1."""

    name: str
    original: np.ndarray
    painted: np.ndarray
    quality: Quality


def contact_sheet(examples: Sequence[Example], title: str, subtitle: str) -> bytes:
    """A PNG with input, output and error of every example."""
    rows = -(-len(examples) // ACROSS)
    block_in = 3 * CELL_IN + 2 * GAP_IN
    across = min(ACROSS, len(examples))
    width_in = across * block_in + (across + 1) * MARGIN_IN
    row_in = CELL_IN + CAPTION_IN + GAP_IN
    height_in = HEAD_IN + rows * row_in + MARGIN_IN
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width_in, height_in), dpi=DPI, facecolor=PAGE)

        def write(x_in: float, y_in: float, text: str, **style: Any) -> None:
            figure.text(x_in / width_in, 1 - y_in / height_in, text, va="baseline", **style)

        def cell(x_in: float, y_in: float) -> Axes:
            bottom = 1 - (y_in + CELL_IN) / height_in
            box = (x_in / width_in, bottom, CELL_IN / width_in, CELL_IN / height_in)
            axes = figure.add_axes(box)
            axes.set_axis_off()
            return axes

        write(MARGIN_IN, 0.32, title, color=INK, fontsize=12, fontweight="bold")
        write(MARGIN_IN, 0.55, subtitle, color=MUTED, fontsize=8.5)
        for number, example in enumerate(examples):
            left = MARGIN_IN + number % ACROSS * (block_in + MARGIN_IN)
            top = HEAD_IN + number // ACROSS * row_in
            name = textwrap.shorten(example.name, 52, placeholder="...")
            write(left, top + 0.16, name, color=INK, fontsize=8)
            write(
                left + block_in,
                top + 0.16,
                _figures(example.quality),
                color=MUTED,
                fontsize=8,
                ha="right",
            )
            for place, image in enumerate((example.original, example.painted, _error(example))):
                axes = cell(left + place * (CELL_IN + GAP_IN), top + CAPTION_IN)
                axes.imshow(
                    image, cmap="magma", vmin=0, vmax=BRIGHTEST, interpolation="antialiased"
                )
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _figures(quality: Quality) -> str:
    return f"{quality.psnr_db:.2f} dB   SSIM {quality.ssim:.3f}   MAE {quality.mae:.4f}"


def _error(example: Example) -> np.ndarray:
    """Mean absolute difference over the channels, [size, size]."""
    return np.abs(example.painted - example.original).mean(axis=-1)
