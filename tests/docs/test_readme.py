"""The README's code runs as printed, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_the_snippet_runs_and_opens_the_sum_of_three_clients(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)  # noqa: S102 - our own README
    assert scope["opened"].num_clients == 3
    assert scope["servers"][0].model.digest() == scope["servers"][1].model.digest()
    assert "a client uploads" in capsys.readouterr().out


def test_every_relative_link_exists():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert links
    assert not missing
