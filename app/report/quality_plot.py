"""The decoder's quality over a session as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib

from app.report.style import EYES, INFER, MUTED, RC, new_figure, to_svg
from app.telemetry.rows import QualityRow


def quality_plot(rows: Sequence[QualityRow]) -> str:
    """Held-out and camera PSNR over seconds, beside the first figure: an SVG element.

    `rows`: at least one, the first with a finite held-out figure.
    """
    first = rows[0]

    def curve(name: str) -> tuple[list[float], list[float]]:
        known = [(row.measured_ns, getattr(row, name)) for row in rows]
        known = [(ns, db) for ns, db in known if db is not None]
        return [(ns - first.measured_ns) / 1e9 for ns, _ in known], [db for _, db in known]

    with matplotlib.rc_context(RC):
        figure = new_figure(3.2)
        axes = figure.add_subplot()
        seconds, db = curve("camera_db")
        if db:
            axes.plot(seconds, db, color=EYES, linewidth=1, alpha=0.6, label="camera image")
        seconds, db = curve("held_out_db")
        axes.plot(seconds, db, color=INFER, label="held-out photographs")
        if first.held_out_db is not None:
            dashes = (0, (4, 3))
            axes.axhline(
                first.held_out_db, color=MUTED, linestyle=dashes, linewidth=1, label="before"
            )
        axes.set_xlabel("seconds")
        axes.set_ylabel("PSNR, dB")
        axes.set_xlim(left=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        return to_svg(figure, "PSNR of held-out photographs and of the camera image")
