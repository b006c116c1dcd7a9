"""Which parts of other frameworks are imported; what of this folder needs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOM = Path(__file__).resolve().parents[2] / "torchfsl" / "integrations" / "flower"
PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.clientapp"}


def test_of_flower_only_the_four_public_packages_are_imported() -> None:
    found = set()
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    flower = {name for name in found if name.split(".")[0] == "flwr"}
    assert flower
    assert flower <= PUBLIC


def test_the_tests_of_the_flower_integration_run_here() -> None:
    """Else this is the skip that says so: they are left out by conftest.py."""
    flwr = pytest.importorskip("flwr", reason="needs the extra flower: scripts/checks/flower.sh")
    assert flwr.__name__ == "flwr"
