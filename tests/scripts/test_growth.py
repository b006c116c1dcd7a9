"""The check of many rounds notices what grows, and runs."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.checks.growth import grown, main


def notes(**series: list[int]) -> list[dict[str, int]]:
    rounds = len(next(iter(series.values())))
    still = {"memory": [1000] * rounds, "files": [20] * rounds, "threads": [9] * rounds} | series
    return [
        {"round": n + 1, **{name: values[n] for name, values in still.items()}}
        for n in range(rounds)
    ]


def test_what_grows_is_named_and_what_swings_is_not() -> None:
    assert grown(notes(memory=[100, 900, 1000, 990, 1000, 1020, 1010, 1025]), 0.03) == []
    assert grown(notes(memory=list(range(1000, 1800, 100))), 0.03) == ["memory from 1300 to 1700"]
    assert grown(notes(files=[20] * 7 + [24]), 0.03) == []
    assert grown(notes(files=[20] * 6 + [24] * 2), 0.03) == ["files from 20 to 24"]


def test_a_few_rounds(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    options = ["--rounds", "4", "--clients", "2", "--every", "1", "--slack", "0.5"]
    assert main([*options, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [len(kept) for kept in found["notes"]] == [4, 4]
    assert all(note["memory"] > 1 << 20 for kept in found["notes"] for note in kept)
