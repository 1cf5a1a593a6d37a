"""The worst second as a picture: four quarters, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes

from app.report.style import (
    EYES,
    INK,
    JOB_COLOURS,
    LINE,
    MISSED,
    MUTED,
    PAGE,
    RC,
    new_figure,
    to_svg,
)
from app.report.timeline import SECOND_NS, Span, Timeline

QUARTERS = 4


def timeline_plot(timeline: Timeline) -> str:
    """Eye images, chunks and refreshes over one second: an SVG element."""
    start_ns = timeline.second.start_ns
    with matplotlib.rc_context(RC):
        figure = new_figure(5.6)
        panels = figure.subplots(QUARTERS, 1)
        for quarter, axes in enumerate(panels):
            _draw(axes, timeline, start_ns)
            begin = 1e3 * quarter / QUARTERS
            axes.set_xlim(begin, begin + 1e3 / QUARTERS)
        panels[-1].set_xlabel("ms")
        panels[0].plot([], [], "x", color=MISSED, label="refresh without a new frame")
        panels[0].plot([], [], "|", color=MUTED, label="refresh with one")
        panels[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        return to_svg(
            figure, f"One second of {timeline.second.folder.path.name}, from {start_ns} ns"
        )


def _draw(axes: Axes, timeline: Timeline, start_ns: int) -> None:
    names = ["eyes", *(name for name in JOB_COLOURS if timeline.chunks.get(name))]
    lanes = {name: len(names) - 1 - index for index, name in enumerate(names)}
    top = len(names) - 0.1
    _bars(axes, timeline.eyes, start_ns, lanes["eyes"], EYES)
    _bars(axes, timeline.late, start_ns, lanes["eyes"], MISSED)
    for name in names[1:]:
        _bars(axes, timeline.chunks[name], start_ns, lanes[name], JOB_COLOURS[name])
    shown = _ms(timeline.refreshes, start_ns)
    axes.vlines(shown, -0.45, top, color=LINE, linewidth=1, zorder=0)
    axes.plot(shown, [top] * len(shown), "|", color=MUTED, markersize=5)
    stale = _ms(timeline.stale, start_ns)
    axes.vlines(stale, -0.45, top, color=MISSED, linewidth=1, alpha=0.35, zorder=0)
    axes.plot(stale, [top] * len(stale), "x", color=MISSED, markersize=5, markeredgewidth=1.6)
    axes.set_yticks(list(lanes.values()), list(lanes), color=INK)
    axes.set_ylim(-0.5, top + 0.35)
    axes.grid(visible=False)


def _bars(axes: Axes, spans: Sequence[Span], start_ns: int, lane: int, colour: str) -> None:
    bars = [((begin - start_ns) / 1e6, (end - begin) / 1e6) for begin, end in spans]
    axes.broken_barh(bars, (lane - 0.36, 0.72), color=colour, edgecolor=PAGE, linewidth=0.5)


def _ms(stamps: Sequence[int], start_ns: int) -> list[float]:
    return [(stamp - start_ns) / 1e6 for stamp in stamps if 0 <= stamp - start_ns <= SECOND_NS]
