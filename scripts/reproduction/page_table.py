"""Tables of pages: each is a function from results to rows, with a head and a format of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scripts.reproduction import markdown
from scripts.reproduction.results import read_result

Rows = Callable[[Any], Iterable[Any]]
Stamp = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class PageTable:
    """One table.

    Attributes:
        head: format string of the heads over the figures, ` | ` between them.
        row: format string of a row, see `markdown.filled`; empty if rows are finished cells.
        rows: a function of the figures.
        figures: a function that reads them.
        stamp: the line below the table, of the figures; None for no line.
        command: arguments of `scripts/reproduce` that make the figures.
    """

    head: str
    row: str
    rows: Rows
    figures: Callable[[], Any]
    stamp: Stamp | None
    command: str

    def render(self) -> str:
        """The text between the table's marks, `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
        figures = self.figures()
        if not figures:
            return markdown.missing(self.command)
        head = markdown.filled(self.head, figures if isinstance(figures, Mapping) else ())
        lines = [head, *(self._line(row) for row in self.rows(figures))]
        lines = [f"| {line} |\n" for line in lines]
        lines.insert(1, "|" + " --- |" * (head.count(" | ") + 1) + "\n")
        return "".join(lines) + ("\n" + self.stamp(figures) if self.stamp else "")

    def _line(self, row: Any) -> str:
        return markdown.filled(self.row, row) if self.row else " | ".join(map(str, row))


TABLES: dict[str, PageTable] = {}
"""All tables by the name of their marks."""


def table(
    name: str,
    head: str,
    row: str = "",
    *,
    figures: str | Callable[[], Any] = "",
    stamp: Stamp | None = markdown.stamp,
    command: str = "",
) -> Callable[[Rows], Rows]:
    """Adds the table that a function makes the rows of.

    Args:
        name: of its marks.
        head: see `PageTable`.
        row: see `PageTable`.
        figures: a function that reads them, or the name of a result; empty for the table's name.
        stamp: see `PageTable`.
        command: see `PageTable`; empty for the result's name.
    """
    source = figures or name

    def add(rows: Rows) -> Rows:
        read = source if callable(source) else lambda: read_result(source)
        TABLES[name] = PageTable(head, row, rows, read, stamp, command or str(source))
        return rows

    return add
