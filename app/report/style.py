"""How plots look: quiet axes, and colours that the page decides, for light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS: Mapping[str, str] = {
    "page": "#fbfbf9",
    "ink": "#1d1d1b",
    "muted": "#6a6963",
    "line": "#dedcd5",
    "blue": "#2a78d6",
    "orange": "#e0601f",
    "aqua": "#179a6b",
    "violet": "#6450c8",
    "red": "#d13434",
}
"""By their names in page.css, whose values replace these in the page."""

PAGE, INK, MUTED, LINE = (COLOURS[name] for name in ("page", "ink", "muted", "line"))
EYES, TRAIN, INFER, MISSED = (COLOURS[name] for name in ("blue", "orange", "aqua", "red"))
JOB_COLOURS = {"train": TRAIN, "infer": INFER}

WIDTH_IN = 10.0

RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}


def new_figure(height_in: float) -> Figure:
    """A figure of the page's width."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def headroom(axes: Axes) -> None:
    """Let the y axis begin at zero and end above the data."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.08)


def to_svg(figure: Figure, alt: str) -> str:
    """The figure as an SVG element to stand in a page; `alt` tells what it shows."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({**RC, "svg.hashsalt": alt}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Ids of groups serve nobody and repeat from plot to plot; those of clips and markers stay.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{_attribute(alt)}"', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
