"""Tables and lines for people at a terminal and for pipes alike."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def say(console: Console, line: str = "") -> None:
    """A line as it is, never wrapped."""
    print(line, file=console.file)


@contextlib.contextmanager
def to_reader(console: Console) -> Iterator[None]:
    """Print to a reader (head, less) that may have seen enough before the end."""
    try:
        yield
        console.file.flush()
    except BrokenPipeError:
        # Nothing may be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = ""
) -> None:
    """A table; where not to a terminal, aligned text that is never cut. ">x" aligns x right."""
    names = [name.lstrip(">") for name in columns]
    right = [name.startswith(">") for name in columns]
    cells = [[str(cell) for cell in row] for row in rows]
    if title:
        say(console, title)
    if console.is_terminal:
        table = Table(box=None, header_style="bold")
        for name, justify_right in zip(names, right, strict=True):
            table.add_column(name, justify="right" if justify_right else "left")
        for row in cells:
            table.add_row(*map(escape, row))
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for row in [names, *cells]:
        padded = [
            cell.rjust(width) if justify_right else cell.ljust(width)
            for cell, width, justify_right in zip(row, widths, right, strict=True)
        ]
        say(console, "  ".join(padded).rstrip())
