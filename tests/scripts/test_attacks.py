"""The command that plays all attacks: what it finds, prints and objects to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from scripts.attacks import __main__ as command
from scripts.attacks import leaf_relation
from scripts.attacks.result import AttackResult

RESULT = AttackResult("a name", "what was read", "refused", True, False, 64, 1.0125)


def test_every_function_that_takes_nothing_and_gives_a_result_is_an_attack() -> None:
    found = command.attacks()
    assert found["leaf_relation"] is leaf_relation.leaf_relation
    assert "row" not in found
    assert len(found) == 25


def test_a_table_and_a_file_say_what_happened(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "attacks.json"
    assert command.main(["--only", "leaf_relation", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "two leaves under one check" in printed
    assert "1 of 1 defences held" in printed
    assert json.loads(path.read_text())["leaf_relation"]["worked_off"] is True


@pytest.mark.parametrize(
    ("change", "text"),
    [({"worked_on": True}, "worked"), ({"worked_off": False}, "proves nothing")],
)
def test_a_defence_that_fails_and_an_attack_that_proves_nothing_are_errors(
    change: dict[str, bool],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = dataclasses.replace(RESULT, **change)
    monkeypatch.setattr(command, "attacks", lambda: {"good": lambda: RESULT, "bad": lambda: bad})
    assert command.main([]) == 1
    printed = capsys.readouterr().out
    assert f"NOT as it must be: {text}" in printed
    assert "1 of 2 defences held" in printed
    assert "+64 bytes" in printed
    assert "1.013" in printed or "1.012" in printed
