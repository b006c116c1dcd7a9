"""Every dotted name of torchfsl in a message, a docstring or a page is there to be imported."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.checks import prose

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"(?<![\w./-])torchfsl(?:\.\w+)+(?=\W|$)")
FILES = re.compile(r"\.(?:py|md|toml|yml|json|service|conf|sysusers|so|pem|key)$|-\w+$")
OPTIONAL = ("torchfsl.integrations", "torchfsl.service", "torchfsl.sefl")
"""Packages that need an extra."""
ELSEWHERE = {"torchfsl.v1"}
"""Names of another kind: the gRPC service."""


def names_of(text: str) -> set[str]:
    return {name for name in NAME.findall(text) if not FILES.search(name)} - ELSEWHERE


def resolve(name: str) -> object:
    """The object of a dotted name: each part an attribute, or else a module."""
    path, *parts = name.split(".")
    found: object = importlib.import_module(path)
    for part in parts:
        path += f".{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path and "is not a package" not in str(error):
                    raise  # of another package
        found = getattr(found, part)
    return found


def everywhere() -> dict[str, set[str]]:
    """Names, and the files that have them."""
    used: dict[str, set[str]] = {}
    for text in prose.source_texts():
        if text.file.startswith(("torchfsl/", "training/", "models/")):
            for name in names_of(text.text):
                used.setdefault(name, set()).add(text.file)
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    for path in [*pages, *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.*")]:
        for name in names_of(path.read_text()):
            used.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return used


def test_names_that_messages_and_pages_give_can_be_imported() -> None:
    used, missing = everywhere(), []
    assert any("torchfsl/" in file for files in used.values() for file in files)
    assert {"torchfsl.Federated", "torchfsl.optim.Adam"} <= set(used)
    assert len(used) > 60
    for name, files in sorted(used.items()):
        try:
            assert resolve(name) is not None
        except ModuleNotFoundError:
            if not name.startswith(OPTIONAL):
                raise
        except AttributeError as error:
            missing.append(f"{name} in {', '.join(sorted(files))}: {error}")
    assert not missing, "\n".join(missing)


def test_a_name_that_is_not_there_is_found() -> None:
    found = names_of(
        "use torchfsl.Federated, torchfsl.explain(plan) or `torchfsl.fsl.privacy.nothing`."
    )
    assert found == {"torchfsl.Federated", "torchfsl.explain", "torchfsl.fsl.privacy.nothing"}
    assert resolve("torchfsl.Federated.round") is not None
    for name in ("torchfsl.explain", "torchfsl.fsl.privacy.nothing", "torchfsl.nothing.at_all"):
        with pytest.raises(AttributeError):
            resolve(name)


def texts() -> Iterator[tuple[str, str]]:
    """Messages and helps of a wheel and of the trainer, and annotations of alerts, with places."""
    for path in [*(ROOT / "torchfsl").rglob("*.py"), *(ROOT / "training").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in documents:
                continue
            if isinstance(node.value, str):
                yield f"{path}, {node.lineno}", " ".join(node.value.split())
    rules = ROOT / "deploy" / "prometheus" / "torchfsl.rules.yml"
    for line in rules.read_text().splitlines():
        yield rules.name, line


def test_texts_for_users_name_pages_by_titles_of_the_menu_and_no_file_of_the_repository() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = set()
    for place, text in texts():
        assert not re.search(r"docs/|\.md\b", text), place
        pages |= {*re.findall(r"the page '([^']*)'", text, flags=re.IGNORECASE)}
    assert {"Incidents", "Certificates", "Your own model or data"} <= pages
    assert not [page for page in pages if f"- {page}: " not in menu]
