"""What a report says, as data: printed as tables at a terminal, and written as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from rich.console import Console

from app.tables import print_table, say

CSS = Path(__file__).with_name("page.css")
QUESTION = "Can a network use the renderer's GPU queue without the wearer noticing?"


@dataclass(frozen=True)
class Table:
    """Rows of text under columns; ">x" aligns column x right. `marked`: rows to stand out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plot:
    """A picture: SVG that takes its colours from the page."""

    title: str
    svg: str
    note: str = ""


@dataclass
class Page:
    """A whole report. Plain text throughout; `facts` are (value, label) for the eye."""

    title: str
    answer: str
    details: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Table | Plot] = field(default_factory=list)
    origin: list[str] = field(default_factory=list)
    """Where the figures are from: device, settings, revision."""

    def print(self, console: Console) -> None:
        """Answer and tables."""
        say(console, self.answer)
        for line in [*self.details, *(f"warning: {text}" for text in self.warnings)]:
            say(console, line)
        for table in self.parts:
            if isinstance(table, Table):
                say(console)
                print_table(console, table.columns, table.rows, title=table.title)
                if table.note:
                    say(console, table.note)

    def html(self) -> str:
        """One file that needs no other."""
        lines = "".join(f"<p>{escape(text)}</p>" for text in self.details)
        warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in self.warnings)
        facts = "".join(
            f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
            for value, label in self.facts
        )
        parts = "".join(map(_part, self.parts))
        origin = " · ".join(map(escape, self.origin))
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self.title)}</title><style>{CSS.read_text()}</style></head><body>"
            f'<header><p class="question">{escape(QUESTION)}</p><h1>{escape(self.answer)}</h1>'
            f'{warnings}{lines}<p class="origin">{origin}</p></header>'
            f"<dl>{facts}</dl><main>{parts}</main></body></html>\n"
        )


def _part(part: Table | Plot) -> str:
    note = f'<p class="note">{escape(part.note)}</p>' if part.note else ""
    kind, body = ("plot", part.svg) if isinstance(part, Plot) else ("table", _table(part))
    return f'<section class="{kind}"><h2>{escape(part.title)}</h2>{note}<div>{body}</div></section>'


def _table(table: Table) -> str:
    right = [' class="number"' if name.startswith(">") else "" for name in table.columns]
    head = "".join(
        f"<th{kind}>{escape(name.lstrip('>'))}</th>"
        for kind, name in zip(right, table.columns, strict=True)
    )
    body = ""
    for number, row in enumerate(table.rows):
        cells = "".join(
            f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(right, row, strict=True)
        )
        body += (
            f'<tr class="marked">{cells}</tr>' if number in table.marked else f"<tr>{cells}</tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
