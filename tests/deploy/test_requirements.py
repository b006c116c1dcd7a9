"""A server's list of packages is the project's own, without torch."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_server_needs_what_the_project_lists_but_torch() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["service"]]
    lines = (ROOT / "deploy" / "requirements.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed == [name for name in wanted if not name.startswith("torch")]
