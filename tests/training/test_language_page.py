"""docs/language-models.md: its commands run, and the settings that it names are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from training.cli import main
from training.sections import Language, Local

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "language-models.md").read_text()
SMALL = """
clients_per_round = 2
eval_every = 1
[language]
vocabulary = 64
width = 8
tokens = 8
block = 4
valid_tokens = 500
[local]
steps = 1
"""


def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    commands = [line for line in block[1].splitlines() if line.startswith("python -m training ")]
    assert len(commands) == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(SMALL)
    for number, command in enumerate(commands):
        given = shlex.split(command.replace("FOLDER", "synthetic"))[3:]
        extra = [] if "--config" in given else ["--config", "own.toml"]
        out = [] if "--out" in given else ["--out", f"run{number}"]
        assert main([*given, *extra, *out, "--rounds", "1"]) == 0
    assert (tmp_path / "runs" / "own" / "summary.json").exists()


def test_settings_that_it_names_are_there() -> None:
    named = set(re.findall(r"`(language|local)\.(\w+)", PAGE))
    assert len(named) > 8
    for section, name in named:
        assert hasattr({"language": Language, "local": Local}[section], name), name
