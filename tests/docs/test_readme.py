"""The README's code runs as printed, is short, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_first_program_runs_as_printed(capsys):
    scope: dict[str, Any] = {}
    for number, code in enumerate(BLOCKS, 1):
        exec(compile(code, f"README.md, block {number}", "exec"), scope)  # noqa: S102 - our own
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("20 clients" in line and "matches plain True" in line for line in lines)
    assert all(bool(p.isfinite().all()) for p in scope["model"].parameters())
    assert scope["result"].sums["rest"].any()


def test_the_first_program_has_twelve_lines_and_one_import_beside_model_and_data():
    _, code = BLOCKS
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 12
    assert [line for line in lines if "import" in line] == ["import torchfsl"]


def test_every_relative_link_exists():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert links
    assert not missing
