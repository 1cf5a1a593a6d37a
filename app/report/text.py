"""Numbers as people read them."""

from __future__ import annotations

from pathlib import Path

UNKNOWN = "–"


def number(value: float | None) -> str:
    """About three digits, integers whole; a dash when not known."""
    if value is None:
        return UNKNOWN
    if value == 0 or isinstance(value, int):
        return f"{value:.0f}"
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def count(value: int) -> str:
    """An integer with its thousands apart."""
    return f"{value:,}".replace(",", "\u202f")


def chunks(value: int | None) -> str:
    """A chunk count in words."""
    return "1 chunk" if value == 1 else f"{value} chunks"


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return UNKNOWN if share is None else f"{100 * share:.{0 if share >= 0.1 else 1}f}\u00a0%"


def span(value: float | None, interval: tuple[float, float] | None) -> str:
    """A figure with its 95 % interval."""
    if value is None or interval is None:
        return number(value)
    return f"{number(value)} ({number(interval[0])}–{number(interval[1])})"


def labels(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    resolved = [path.resolve() for path in paths]
    for length in range(1, max(len(path.parts) for path in resolved) + 1):
        short = ["/".join(path.parts[-length:]) for path in resolved]
        if len(set(short)) == len(short):
            return short
    return [str(path) for path in resolved]
