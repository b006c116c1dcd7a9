"""Commands that pages print are taken by the programs that they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from torchfsl.service.command import make_parser as service_parser
from training.cli import config_from, make_parser
from training.export import make_parser as export_parser
from training.privhfl.command import make_parser as privhfl_parser
from training.privhfl.command import settings_from

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"})


def printed(start: str) -> list[tuple[str, str]]:
    """Page and arguments of every command that begins so, in a block or between backticks."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
        lines = [line for b in blocks for line in b.replace("\\\n", " ").splitlines()]
        inline = re.findall(
            r"(?<!`)`([^`]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        )
        for line in [*lines, *(" ".join(code.split()) for code in inline)]:
            if line.startswith(f"{start} "):
                found.append((page.name, line.removeprefix(start).strip()))
    return found


TRAINING = [
    (page, line)
    for page, line in printed("python -m training")
    if " " in line and not re.search(r"^\.\.\.|^compare|PRESET|\||--help|MODULE:NAME", line)
]
LABELS = "registries.md"  # `torchfsl row digest` there is no command
SERVICE = [(page, line) for page, line in printed("torchfsl") if " " in line and page != LABELS]


@pytest.mark.parametrize(("page", "line"), TRAINING)
def test_an_experiment_that_a_page_prints_has_settings(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text("")
    arguments = shlex.split(line, comments=True)
    if arguments[0] == "privhfl":
        assert settings_from(privhfl_parser().parse_args(arguments[1:])).clients
    elif arguments[0] == "export":
        assert export_parser().parse_args(arguments[1:]).torch
    else:
        assert config_from(make_parser().parse_args(arguments)).preset == arguments[0]


@pytest.mark.parametrize(("page", "line"), SERVICE)
def test_a_command_of_the_service_that_a_page_prints_is_taken(page: str, line: str) -> None:
    arguments = shlex.split(line.replace("(N-1)", "9"), comments=True)
    if "--help" not in arguments:
        assert service_parser().parse_args(arguments)


def test_programs_that_pages_name_exist() -> None:
    assert len(TRAINING) > 10
    assert len(SERVICE) > 10
    for page in PAGES:
        text = page.read_text()
        for module, rest in re.findall(r"python -m (scripts(?:\.\w+)+)([^`]*)", text):
            if "# commit " in rest.split("python -m")[0]:
                continue  # of a program that has left the tree since
            place = ROOT / module.replace(".", "/")
            assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
        # SECURITY.md names tests by their place in tests/.
        for name in re.findall(
            r"(?<![\w./-])((?:scripts|deploy|examples)/(?!test_)[\w/.-]*\w)", text
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
