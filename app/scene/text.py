"""Anti-aliased text on the CPU, with the font that comes with pygame."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame
import pygame.freetype

Colour = tuple[int, int, int]

ASCENT = 0.8
"""Height of the baseline below the top of a line, in units of the text size."""

_lock = Lock()  # the HUD may be drawn on a thread of its own, and a font is not thread-safe


@lru_cache(maxsize=1)
def _font() -> pygame.freetype.Font:
    pygame.freetype.init()
    name = pygame.freetype.get_default_font()
    font = pygame.freetype.Font(Path(pygame.__file__).with_name(name))
    font.pad = True  # every line is as high as the font, so that baselines agree
    font.kerning = False  # this font's kerning pulls "fr", "vi" and "kp" apart
    return font


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


@lru_cache(maxsize=512)
def text_width(text: str, pixels: int) -> int:
    """Width of one line of text in pixels."""
    with _lock:
        return int(_font().get_rect(_printable(text), size=pixels).width)


def fit(text: str, pixels: int, width: int) -> str:
    """`text`, shortened at its end with an ellipsis until it is at most `width` pixels wide."""
    if text_width(text, pixels) <= width:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(text[:middle].rstrip() + "…", pixels) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…" if low else ""


@lru_cache(maxsize=512)
def text_surface(text: str, pixels: int, colour: Colour) -> pygame.Surface:
    """One line of text on a transparent surface. Cached: draw from it, never into it."""
    with _lock:
        return _font().render(_printable(text), colour, size=pixels)[0]


def surface_rgba(surface: pygame.Surface) -> NDArray[np.uint8]:
    """Pixels of a surface as [H, W, 4] uint8, straight alpha."""
    width, height = surface.get_size()
    pixels = np.frombuffer(pygame.image.tobytes(surface, "RGBA"), np.uint8)
    return pixels.reshape(height, width, 4)


def caption_image(
    title: str, subtitle: str, size: tuple[int, int], colour: Colour, dim: Colour
) -> NDArray[np.uint8]:
    """Two centred lines, a large one above a small one, as [H, W, 4] uint8, straight alpha.

    Transparent pixels carry the colour of their line, so that filtering adds no dark fringe.
    """
    width, height = size
    split = height * 11 // 20
    canvas = np.zeros((height, width, 4), np.uint8)
    for rows, text, pixels, tone in (
        (canvas[:split], title, split, colour),
        (canvas[split:], subtitle, height * 8 // 20, dim),
    ):
        rows[..., :3] = tone
        line = surface_rgba(text_surface(fit(text, pixels, width), pixels, tone))[: len(rows)]
        left = (width - line.shape[1]) // 2
        rows[: len(line), left : left + line.shape[1], 3] = line[..., 3]
    return canvas
