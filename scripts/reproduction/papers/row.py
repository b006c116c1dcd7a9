"""One row of docs/papers.md: what a paper says, what torchfsl has, and the verdict."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, Literal, NamedTuple

Verdict = Literal["same", "better", "weaker", "different", "not run", "to run"]
VERDICTS: Final[tuple[Verdict, ...]] = (
    "same", "better", "weaker", "different", "not run", "to run",
)  # fmt: skip
REASONS: Final = ("no data: ", "over 4 hours: ", "GPU: ")
"""How the reason of a row that is not run begins."""


class Row(NamedTuple):
    """One claim, table row or figure.

    Attributes:
        place: where it stands in the paper.
        claim: what the paper says.
        printed: the paper's figure; empty if it prints none.
        ours: a format string over `figures.all_figures()`; empty if torchfsl has none.
        verdict: torchfsl against the paper.
        why: how it is weaker or different, or why it is not run; empty where nothing is to be said.
        source: the result that `ours` comes from, as `TABLE` or `FILE:NAME`; or a test, or a
            command line. Page and command follow from it.
        page: where torchfsl's figure stands, under docs/.
    """

    place: str
    claim: str
    printed: str
    ours: str
    verdict: Verdict
    why: str = ""
    source: str = ""
    page: str = ""


def rows_of(paper: str) -> list[Row]:
    """The rows of `PAPER.toml`, in its order."""
    text = Path(__file__).with_name(f"{paper}.toml").read_text(encoding="utf-8")
    return [Row(*fields) for fields in tomllib.loads(text)["rows"]]
