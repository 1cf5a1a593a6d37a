"""What the HUD is drawn on and with: a surface in design units, colours, numbers as text."""

from __future__ import annotations

import math

from app.scene.text import ASCENT, Colour, fit, pygame, text_surface, text_width

DESIGN_SIZE = (1280, 400)

PAPER: Colour = (11, 15, 23)
EDGE: Colour = (58, 72, 96)
WELL: Colour = (21, 28, 41)
TEXT: Colour = (236, 242, 250)
DIM: Colour = (146, 162, 186)
TRACE: Colour = (96, 198, 236)
TRACE_FILL: Colour = (28, 62, 82)
PERIOD: Colour = (190, 204, 222)
GOOD: Colour = (112, 222, 158)
WARN: Colour = (255, 190, 84)
BAD: Colour = (255, 92, 92)


def number(value: float | None, digits: int = 3) -> str:
    """A value with about `digits` significant digits; a dash if unknown, its name if not finite."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -4 or exponent > 6:
        return f"{value:.1e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


class Canvas:
    """A surface drawn on in units, of which `DESIGN_SIZE` fit on it."""

    def __init__(self, surface: pygame.Surface) -> None:
        width, height = surface.get_size()
        self.surface = surface
        self.scale = min(width / DESIGN_SIZE[0], height / DESIGN_SIZE[1])

    def px(self, units: float) -> int:
        """Whole pixels, at least 1."""
        return max(1, round(units * self.scale))

    def rect(self, x: float, y: float, width: float, height: float) -> pygame.Rect:
        """A rectangle in pixels."""
        return pygame.Rect(
            round(x * self.scale), round(y * self.scale), self.px(width), self.px(height)
        )

    def box(self, area: tuple[float, float, float, float], colour: Colour, radius: float) -> None:
        """Fill a rectangle (x, y, width, height) with round corners."""
        pygame.draw.rect(self.surface, colour, self.rect(*area), border_radius=self.px(radius))

    def width(self, text: str, size: float) -> float:
        """Of a line of text."""
        return text_width(text, self.px(size)) / self.scale

    def shrink(self, text: str, size: float, width: float) -> float:
        """The largest text size up to `size` at which a line is at most `width` wide."""
        return min(size, size * width / max(self.width(text, size), 1.0))

    def text(
        self,
        text: str,
        at: tuple[float, float],
        size: float,
        colour: Colour,
        width: float = 1280.0,
        right: bool = False,
    ) -> float:
        """Draw a line whose baseline is at y; x is its left or right end. Returns its width."""
        pixels = self.px(size)
        line = text_surface(fit(text, pixels, self.px(width)), pixels, colour)
        x, y = at[0] * self.scale, (at[1] - ASCENT * size) * self.scale
        self.surface.blit(line, (round(x - line.get_width() if right else x), round(y)))
        return float(line.get_width() / self.scale)
