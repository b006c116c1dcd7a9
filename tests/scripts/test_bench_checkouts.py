"""`scripts.bench.checkouts`: a benchmark of two checkouts by turns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench import checkouts


def test_every_number_of_a_file_has_its_place_as_a_name() -> None:
    found = {
        "environment": {"cores": 2}, "settings": {"repeat": 9}, "exact": True, "name": "x",
        "seconds": [1.5, 2], "parts": {"open": 0.25},
    }  # fmt: skip
    assert dict(checkouts.figures_in(found)) == {
        "seconds[0]": 1.5, "seconds[1]": 2.0, "parts.open": 0.25,
    }  # fmt: skip


def test_medians_are_of_figures_that_both_have_and_ratios_of_the_turns() -> None:
    turns = [
        [{"a seconds": old, "bytes": 1.0, "old seconds": 1.0}, {"a seconds": new, "bytes": 1.0}]
        for old, new in ((1.0, 2.0), (2.0, 1.0), (4.0, 3.0))
    ]
    assert list(checkouts.compare(turns, "seconds")) == [("a seconds", 2.0, 2.0, 0.75)]


def test_a_folder_without_an_environment_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no \.venv/bin/python"):
        checkouts.interpreter(tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(SystemExit, match=r"runs .*torchfsl/__init__\.py: pip install"):
        checkouts.interpreter(tmp_path)
