"""The plots of a report. Each gives an SVG element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from app.report.arms import Arm, Group
from app.report.figures import UNNOTICED_PER_1000
from app.report.style import (
    COLOURS,
    EYES,
    INK,
    LINE,
    MISSED,
    MUTED,
    PAGE,
    RC,
    headroom,
    new_figure,
    to_svg,
)
from app.report.text import chunks

POLICY_STYLES = {
    "fixed": (COLOURS["blue"], "o"),
    "greedy": (COLOURS["orange"], "s"),
    "deadline": (COLOURS["violet"], "D"),
}
SERIES = (COLOURS["blue"], COLOURS["orange"], COLOURS["aqua"], COLOURS["violet"])

LABEL_OFFSETS = [(5, 4), (5, -11), *((-3, 7 + 9 * row) for row in range(8))]
"""From a point to its label, points, the best place first."""

QUEST_CHUNKS = (1, 2, 4, 8, 12, 16)
QUEST_ALONE_MS = (96.8, 100.8, 105.8, 108.3, 112.9, 114.7)
QUEST_BESIDE_MS = (149.5, 119.3, 129.7, 128.9, 131.6, 143.4)
"""Published inference latency on a Quest 3S, alone and beside a renderer."""


def missed_against_rate(group: Group, alone: Arm | None, other: Group | None = None) -> str:
    """Missed refreshes against the network's rate, every arm with its 95 % intervals.

    `alone`: the renderer's own misses, a line. `other`: the same arms of another sweep, hollow and
    joined to these.
    """
    with matplotlib.rc_context(RC):
        figure = new_figure(4.4)
        axes = figure.add_subplot()
        for policy, (colour, marker) in POLICY_STYLES.items():
            arms = [arm for arm in group.arms if arm.policy == policy and _placed(arm)]
            for arm in arms:
                _place(axes, arm, colour, marker, filled=True)
            if arms:
                axes.plot([], [], marker, color=colour, label=policy)
        before = {arm.label: arm for arm in other.arms if _placed(arm)} if other else {}
        for arm in before.values():
            _place(axes, arm, *POLICY_STYLES.get(arm.policy, (MUTED, "o")), filled=False)
        for arm in group.arms:
            if arm.label in before and _placed(arm):
                (x0, y0), (x1, y1) = _point(before[arm.label]), _point(arm)
                axes.plot([x0, x1], [y0, y1], color=MUTED, linewidth=0.8, zorder=1)
        if alone is not None and alone.missed is not None:
            axes.axhline(alone.missed, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
            note = "renderer alone "
            axes.annotate(
                note,
                (1, alone.missed),
                xycoords=axes.get_yaxis_transform(),
                ha="right",
                xytext=(0, 4),
                textcoords="offset points",
                color=MUTED,
            )
        axes.axhspan(-1, UNNOTICED_PER_1000, color=LINE, alpha=0.35, linewidth=0)
        axes.set_xlabel(f"{group.work} per second")
        axes.set_ylabel("missed refreshes of 1000")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.06)
        _zero_to_thousand(axes)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        figure.draw_without_rendering()  # the layout settles where points are
        _label(axes, [arm for arm in group.arms if _placed(arm)])
        return to_svg(figure, f"Missed refreshes against {group.work} per second, {group.title}")


def frame_times(arms: Sequence[tuple[str, np.ndarray]], period_ms: float | None) -> str:
    """Distributions, one a row: (label, frame times in ms, sorted), beside the refresh period."""
    with matplotlib.rc_context(RC):
        figure = new_figure(0.9 + 0.27 * len(arms))
        axes = figure.add_subplot()
        for row, (_, times) in enumerate(arms):
            low, quarter, middle, high, late = np.percentile(times, (1, 25, 50, 75, 99))
            axes.plot([low, late], [row, row], color=EYES, linewidth=1, solid_capstyle="butt")
            axes.plot(
                [quarter, high],
                [row, row],
                color=EYES,
                linewidth=6,
                alpha=0.45,
                solid_capstyle="butt",
            )
            axes.plot([middle], [row], "|", color=INK, markersize=10, markeredgewidth=1.6)
            axes.plot([times[-1]], [row], ".", color=EYES, markersize=4)
        if period_ms:
            axes.axvline(period_ms, color=MISSED, linewidth=1)
            axes.annotate(
                f" period {period_ms:.1f} ms",
                (period_ms, 1),
                color=MISSED,
                xycoords=axes.get_xaxis_transform(),
                va="bottom",
            )
        axes.set_yticks(range(len(arms)), [label for label, _ in arms])
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        axes.set_xlabel("frame time, ms")
        return to_svg(figure, "Frame times by arm")


def frame_percentiles(runs: Sequence[tuple[str, np.ndarray]], period_ms: float | None) -> str:
    """Frame time that a share of the frames stays below, the tail stretched: (label, sorted ms)."""
    with matplotlib.rc_context(RC):
        figure = new_figure(3.6)
        axes = figure.add_subplot()
        most = max(len(times) for _, times in runs)
        for (label, times), colour in zip(runs, SERIES, strict=False):
            # Slower than the k-th of n sorted frames are n - k; one pixel needs no two points.
            rest = np.unique(np.geomspace(1, len(times), 600).astype(int))
            axes.step(
                len(times) / rest, times[len(times) - rest], color=colour, label=label, where="post"
            )
        if period_ms:
            axes.axhline(period_ms, color=MISSED, linewidth=1)
            axes.annotate(
                f"period {period_ms:.1f} ms",
                (0, period_ms),
                color=MISSED,
                xycoords=axes.get_yaxis_transform(),
                xytext=(4, 3),
                textcoords="offset points",
            )
        axes.set_xscale("log")
        shares = [
            (1, "0 %"),
            (2, "50 %"),
            (10, "90 %"),
            (100, "99 %"),
            (1e3, "99.9 %"),
            (1e4, "99.99 %"),
        ]
        shown = [(at, text) for at, text in shares if at <= most]
        axes.set_xticks([at for at, _ in shown], [text for _, text in shown])
        axes.minorticks_off()
        axes.set_xlim(1, max(most, 2))
        axes.set_xlabel("share of frames that are faster")
        axes.set_ylabel("frame time, ms")
        headroom(axes)
        if len(runs) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(0, 1.0))
        return to_svg(figure, f"Frame times of {' and '.join(label for label, _ in runs)}")


def latency_curve(group: Group) -> tuple[str, int] | None:
    """Worker latency against chunk count, alone and beside the renderer, and the published curve.

    Relative to the fewest chunks, whose number is given too. None unless fixed arms of several
    chunk counts were measured.
    """
    arms = [arm for arm in group.arms if arm.policy == "fixed" and arm.chunks]
    counts = sorted({arm.chunks for arm in arms if arm.chunks})
    if len(counts) < 2:
        return None
    with matplotlib.rc_context(RC):
        figure = new_figure(4.0)
        axes = figure.add_subplot()
        ticks = counts
        if counts[0] in QUEST_CHUNKS:
            quest = dict(zip(QUEST_CHUNKS, QUEST_BESIDE_MS, strict=True))
            quest_alone = dict(zip(QUEST_CHUNKS, QUEST_ALONE_MS, strict=True))
            ticks = sorted({*counts, *(count for count in quest if count > counts[0])})
            _curve(axes, quest, counts[0], MUTED, "-", "Quest 3S, beside its renderer")
            _curve(axes, quest_alone, counts[0], MUTED, "--", "Quest 3S, alone")
        for bound, colour in zip(
            sorted({arm.in_flight or 1 for arm in arms}), SERIES, strict=False
        ):
            mine = [arm for arm in arms if (arm.in_flight or 1) == bound]
            ends = f"{bound} in flight"
            for metric, line, words in (
                ("worker_ms", "-", "beside the renderer"),
                ("isolated_worker_ms", "--", "alone"),
            ):
                known = {
                    a.chunks: a.values[metric] for a in mine if a.chunks and metric in a.values
                }
                _curve(axes, known, counts[0], colour, line, f"{ends}, {words}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(count) for count in ticks])
        if axes.get_ylim()[1] > 4:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel("chunks")
        axes.set_ylabel(f"latency, relative to {chunks(counts[0])}")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return to_svg(figure, f"Latency against chunk count, {group.title}"), counts[0]


def _curve(
    axes: Axes, ms: Mapping[int, float], base: int, colour: str, line: str, label: str
) -> None:
    counts = sorted(count for count in ms if count >= base)
    if ms.get(base) and len(counts) > 1:
        relative = [ms[count] / ms[base] for count in counts]
        axes.plot(counts, relative, line, color=colour, label=label, marker="o", markersize=4)


def _placed(arm: Arm) -> bool:
    return arm.rate is not None and arm.missed is not None


def _place(axes: Axes, arm: Arm, colour: str, marker: str, *, filled: bool) -> None:
    """A point with its intervals."""
    x, y = arm.rate or 0.0, arm.missed or 0.0
    sides = []
    for value, interval in ((x, arm.ci95.get(arm.rate_name)), (y, arm.ci95.get("missed_per_1000"))):
        low, high = interval or (value, value)
        sides.append([[max(0.0, value - low)], [max(0.0, high - value)]])
    face = colour if filled else PAGE
    axes.errorbar(
        x, y, xerr=sides[0], yerr=sides[1], fmt="none", ecolor=colour, alpha=0.5, elinewidth=1
    )
    axes.plot([x], [y], marker, color=colour, markerfacecolor=face, markersize=6)


def _label(axes: Axes, arms: Sequence[Arm]) -> None:
    """Name the points, each beside its own, above or below where others are in the way."""
    scale = axes.figure.dpi / 72
    taken = [
        axes.transData.transform(_point(arm)) + np.array((-4, -4, 4, 4)).reshape(2, 2) * scale
        for arm in arms
    ]
    for arm in sorted(arms, key=_point):
        text = f"{arm.chunks}/{arm.in_flight}"
        size = np.array((5.0 * len(text), 8.0))
        for offset in LABEL_OFFSETS:
            corner = axes.transData.transform(_point(arm)) + np.array(offset) * scale
            box = np.array((corner, corner + size * scale))
            if not any(_overlap(box, other) for other in taken):
                break
        taken.append(box)
        axes.annotate(
            text,
            _point(arm),
            xytext=offset,
            textcoords="offset points",
            fontsize=8,
            color=MUTED,
        )


def _point(arm: Arm) -> tuple[float, float]:
    return arm.rate or 0.0, arm.missed or 0.0


def _overlap(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two boxes [lower left, upper right] share a point."""
    return bool((first[0] < second[1]).all() and (second[0] < first[1]).all())


def _zero_to_thousand(axes: Axes) -> None:
    """Linear up to one missed refresh of 1000, the goal, and logarithmic above when need be."""
    top = axes.get_ylim()[1]
    if top > 20:
        axes.set_yscale("symlog", linthresh=1, linscale=0.6)
        ticks = [0, 1, 10, 100, 1000]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    # A little below zero, so that points at zero are whole.
    axes.set_ylim(-0.15 if top > 20 else -0.04 * top, min(1500, max(top * 1.6, 1.5)))
