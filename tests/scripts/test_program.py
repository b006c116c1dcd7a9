"""The command line that all programs share."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from scripts.program import ROOT, Found, Options, UsageError, option, program


@program(option("--rounds", 2, "how many"), option("--small", False), option("names", nargs="*"))
def main(options: Options) -> Found:
    if options.small:
        raise UsageError("too small")
    return {"rounds": options.rounds, "names": options.names, "ok": options.rounds < 5}


@program(finds=False, further="another program")
def passing(options: Options) -> int:
    return len(options.further)


def test_findings_are_written_with_command_machine_and_date(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert main(["--rounds", "3", "a", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert list(found) == ["command", "machine", "date", "rounds", "names", "ok"]
    assert found["command"].endswith(f"test_program --rounds 3 a --json {path}")
    assert (found["rounds"], found["names"]) == (3, ["a"])


def test_what_a_program_finds_wrong_is_its_exit_status() -> None:
    assert main(["--rounds", "5"]) == 1


@pytest.mark.parametrize("arguments", [["--small"], ["--unknown"], ["--rounds", "x"]])
def test_a_command_line_that_cannot_run_ends_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_arguments_of_another_program_are_passed_on() -> None:
    assert passing(["x", "--", "--rounds", "3"]) == 3


def test_every_program_has_this_command_line() -> None:
    """`installed.py` has none: it runs where scripts are not."""
    own = {ROOT / "scripts" / "program.py", ROOT / "scripts" / "checks" / "installed.py"}
    for path in set((ROOT / "scripts").rglob("*.py")) - own:
        text = path.read_text()
        assert "ArgumentParser(" not in text, path
        assert "__name__ ==" not in text, path


def test_the_program_is_the_last_statement_of_its_module() -> None:
    """It runs when it is defined: a function behind it would not be there yet."""
    for path in (ROOT / "scripts").rglob("*.py"):
        body = ast.parse(path.read_text()).body
        for node in body[:-1]:
            decorators = getattr(node, "decorator_list", [])
            names = {ast.unparse(one).partition("(")[0] for one in decorators}
            assert not names & {"program", "check", "measure.benchmark"}, path
