"""The lines of the doctor's report, and how they are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.errors import first_line


@dataclass(frozen=True)
class Line:
    """One fact of the report."""

    label: str
    value: str
    wrong: bool = False


def lines_of(look: Callable[[], Iterator[Line]]) -> list[Line]:
    """The lines of a section up to its first fault, and the fault."""
    lines: list[Line] = []
    try:
        for line in look():
            lines.append(line)
    except Exception as fault:
        lines.append(Line("not known", first_line(fault), wrong=True))
    return lines


def print_section(console: Console, title: str, lines: list[Line]) -> None:
    """Print one section; on a terminal with colours, else one unwrapped line for each."""
    if not console.is_terminal:
        # Nothing is wrapped, so that scripts find whole lines.
        for text in (f"{title}:", *(f"  {line.label}: {line.value}" for line in lines)):
            print(text, file=console.file)
        return
    table = Table.grid(padding=(0, 2))
    for line in lines:
        table.add_row(Text(f"  {line.label}"), Text(line.value, "red" if line.wrong else ""))
    console.print(Text(f"\n{title}", "bold"), table)
