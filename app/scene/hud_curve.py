"""The HUD's curve of held-out PSNR over the session, beside what it was before."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.scene.hud_canvas import DIM, GOOD, WARN, Canvas, number
from app.scene.text import pygame

CURVE = (482.0, 166.0, 222.0, 105.0)
LEAST_DB = 2.0
"""The least that the curve's height stands for."""


def draw_curve(canvas: Canvas, points: Sequence[tuple[int, float]]) -> None:
    """Draw (ns, dB), the first as it was before; a level line goes on from there."""
    points = [(ns, db) for ns, db in points if math.isfinite(db)]
    left, top, width, height = CURVE
    if not points:
        canvas.text("held out: unknown", (left + 12, top + 28), 22, DIM, width - 24)
        return
    (begin_ns, before), (end_ns, newest) = points[0], points[-1]
    low, high = (pick(db for _, db in points) for pick in (min, max))
    spare = max(0.0, LEAST_DB - (high - low)) / 2
    low, high = low - spare, high + spare
    area = canvas.rect(left + 8, top + 34, width - 16, height - 42)

    def at(ns: int, db: float) -> tuple[float, float]:
        x = area.left + (ns - begin_ns) / max(1, end_ns - begin_ns) * area.width
        return x, area.bottom - (db - low) / (high - low) * area.height

    level = round(at(begin_ns, before)[1])
    pygame.draw.line(canvas.surface, WARN, (area.left, level), (area.right, level), canvas.px(2))
    if len(points) > 1:
        line = [at(ns, db) for ns, db in points]
        pygame.draw.lines(canvas.surface, GOOD, False, line, canvas.px(3))
    text = canvas.text(f"before {number(before)}", (left + 12, top + 25), 21, WARN)
    canvas.text(f"{number(newest)} dB", (left + 24 + text, top + 25), 21, GOOD)
