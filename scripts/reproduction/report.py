"""Fills the tables of docs/results/ and of the pages of SINGLE from results/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from scripts.reproduction import (
    accuracy_tables,
    cost_tables,
    din_tables,
    papers_tables,
    plots,
    privacy_tables,
    privhfl_tables,
    recommendation_tables,
    sefl_tables,
    sesa_tables,
    systems_tables,
)
from scripts.reproduction.page_table import TABLES

DOCS: Final = Path("docs")
SINGLE: Final = ("systems.md", "averages.md", "papers.md", "specification/privacy-proofs.md")
MARKS: Final = re.compile(r"(<!-- ([\w-]+): begin -->\n).*?(<!-- \2: end -->\n)", re.DOTALL)
MODULES: Final = (
    cost_tables,
    accuracy_tables,
    din_tables,
    recommendation_tables,
    privacy_tables,
    sesa_tables,
    sefl_tables,
    privhfl_tables,
    systems_tables,
    papers_tables,
)
"""The modules that add their tables to TABLES."""


def pages() -> list[Path]:
    """Pages with marks of these tables."""
    return [*sorted((DOCS / "results").glob("*.md")), *(DOCS / name for name in SINGLE)]


def filled(page: str) -> str:
    """The page with its tables made anew."""
    return MARKS.sub(lambda found: f"{found[1]}{TABLES[found[2]].render()}{found[3]}", page)


def write() -> None:
    """Draw the plots and fill the pages."""
    plots.draw()
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {path}")
