"""The Python blocks of `docs/specification`, run in one namespace in the order of the pages."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "specification"
ORDER = (
    "notation",
    "suite",
    "trees",
    "placement",
    "plan",
    "client",
    "servers",
    "counts",
    "bounds",
    "noise",
    "proving",
    "messages",
    "audits",
)


def blocks(page: str) -> list[tuple[int, str]]:
    """The blocks of a page, each with the number of lines before it."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, one.start(1)), one[1]) for one in found]


def run() -> ModuleType:
    """A fresh program; tracebacks name the lines of the pages."""
    program = ModuleType("specification")
    for page in ORDER:
        for line, text in blocks(page):
            code = compile("\n" * line + text, str(FOLDER / f"{page}.md"), "exec")
            exec(code, vars(program))  # noqa: S102 - pages of this checkout
    return program
