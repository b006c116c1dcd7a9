"""docs/architecture.md: the map is that of the code; every file and function it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.generate import architecture_map

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["docs/architecture.md", "docs/code-paths.md", "CONTRIBUTING.md"]
LIMIT = 250


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def file_of(path: str) -> Path | None:
    """A path as pages write it: from the root, or below torchfsl/."""
    found = [p for p in (ROOT / path, ROOT / "torchfsl" / path) if p.exists()]
    return found[0] if found else None


def defined(path: Path) -> set[str]:
    """Names of a file: functions, classes, their members, and constants."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = [
                m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            names |= {f"{node.name}.{member.name}" for member in members}
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {ast.unparse(target) for target in targets}
    return names


def test_the_map_is_that_of_the_imports() -> None:
    graph = architecture_map.import_graph(architecture_map.modules(ROOT / "torchfsl"))
    drawn = architecture_map.BEGIN + architecture_map.render(graph) + architecture_map.END
    assert drawn in text_of("docs/architecture.md"), (
        "stale: python -m scripts.generate.architecture_map"
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_function_that_a_page_names_exists(page: str) -> None:
    named = re.findall(r"`([\w./-]+\.py):([\w.]+)`", text_of(page))
    assert named or page == "CONTRIBUTING.md"
    missing = []
    for path, name in named:
        file = file_of(path)
        if file is None or name not in defined(file):
            missing.append(f"{path}:{name}")
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_folder_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`([\w./-]+(?:\.(?:py|md|sh|toml|cff)|/))(?::[\w.]+)?`", text_of(page)))
    assert named
    assert not sorted(path for path in named if file_of(path) is None)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_has_its_script(page: str) -> None:
    modules = re.findall(r"python -m (scripts(?:\.\w+)+)", text_of(page))
    missing = []
    for module in modules:
        path = ROOT.joinpath(*module.split("."))
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
            missing.append(module)
    assert not missing


def test_the_page_stays_short_beside_its_map() -> None:
    head, _, rest = text_of("docs/architecture.md").partition(architecture_map.BEGIN)
    assert len((head + rest.partition(architecture_map.END)[2]).splitlines()) < LIMIT
