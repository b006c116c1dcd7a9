"""docs/sefl.md: its example prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sefl.md").read_text()

pytest.importorskip("tenseal", reason="needs the extra homomorphic")


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(compile(block[1], "docs/sefl.md", "exec"), {})  # noqa: S102
    expected = re.search(r"print\(.*\)  # (.*)", block[1])
    assert expected is not None
    assert capsys.readouterr().out.strip() == expected[1]
