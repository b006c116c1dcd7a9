"""What `scripts/test --fast` selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.checks import fast_tests

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("path", "wing"),
    [
        ("torchfsl/fsl/plan/plan.py", "fsl"),
        ("torchfsl/kernels/csrc/path/path.h", "kernels"),
        ("tests/service/test_node.py", "service"),
        ("models/din.py", "training"),
        ("results/tables.jsonl", "scripts"),
        ("docs/engine.md", "docs"),
        ("torchfsl/errors.py", None),
        ("tests/support/network.py", None),
        ("pyproject.toml", None),
    ],
)
def test_a_file_belongs_to_the_wing_whose_tests_know_it(path: str, wing: str | None) -> None:
    assert fast_tests.wing_of(path) == wing


def test_every_wing_of_the_library_has_tests() -> None:
    folders = {path.parent.name for path in ROOT.glob("torchfsl/*/__init__.py")}
    assert folders <= set(fast_tests.wings())


@pytest.mark.parametrize("chosen", [(), ("fsl",), ("docs", "engine", "docs")])
def test_what_is_selected_exists_once_and_guards_are_part_of_it(chosen: tuple[str, ...]) -> None:
    option, markers, *paths = fast_tests.selection(chosen)
    assert (option, markers) == ("-m", "not slow")
    assert len(set(paths)) == len(paths)
    assert all((ROOT / path).exists() for path in paths)
    assert "tests/test_ladder.py" in paths
    assert {f"tests/{wing}" for wing in chosen} <= set(paths)
