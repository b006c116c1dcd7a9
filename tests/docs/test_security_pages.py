"""Pages on security: tests and attacks that they name are there, and the first screens warn."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from scripts.attacks.__main__ import attacks
from scripts.checks.prose import prose_of, words

ROOT = Path(__file__).resolve().parents[2]
SECURITY = ROOT / "SECURITY.md"
PAGES = [
    SECURITY,
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "specification/arguments",
            "specification/steering",
            "specification/derivations",
            "findings",
            "specification/proofs",
            "audit-pack",
            "specification/security",
        )
    ),
    *(
        ROOT / "docs" / folder / f"{name}.md"
        for name in ("sesa", "sefl", "privhfl")
        for folder in ("", "specification")
    ),
]


def named(page: Path) -> list[Path]:
    """Files of tests in code marks, by their path under tests/ or in the repository."""
    found = re.findall(r"`((?:tests/)?(?:\w+/)*test_\w+\.py)(?:::\w+)?`", page.read_text())
    return [Path(name.removeprefix("tests/")) for name in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_on_security_names_exists(page: Path) -> None:
    tests = named(page)
    assert tests
    # Behind the first test of a folder a page may leave the folder out.
    known = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        test
        for test in tests
        if not (ROOT / "tests" / test).is_file()
        and not (len(test.parts) == 1 and test.name in known)
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES[:5], ids=lambda page: page.stem)
def test_every_attack_that_a_page_on_security_names_exists(page: Path) -> None:
    modules = re.findall(r"`(?:scripts/attacks/)?((?!test_)\w+)\.py`", page.read_text())
    assert [name for name in modules if not (ROOT / f"scripts/attacks/{name}.py").is_file()] == []


def test_a_finding_has_a_commit_and_a_test_or_attack_in_one_line() -> None:
    lines = (ROOT / "docs" / "findings.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert 30 < len(rows) <= 40
    for row in rows:
        _, commits, plays = row.strip("| ").rsplit(" | ", 2)
        assert re.fullmatch(r"`[0-9a-f]{7}`(, `[0-9a-f]{7}`)*", commits), row
        assert plays.count(".py`"), row


def test_security_can_be_read_at_once() -> None:
    assert words(prose_of(SECURITY.read_text())) <= 2500


def test_the_first_screens_say_that_one_server_can_steer_and_then_read_samples() -> None:
    """A reader must not take "may be malicious" for a promise about the sum."""
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    learns = SECURITY.read_text().partition("## Who learns what?")[2].partition("\n## ")[0]
    for text in (first, learns):
        assert "steer" in text
        assert "training samples" in text


def defined(path: Path) -> set[str]:
    """Functions and classes of a file, methods behind their class and a dot."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{f.name}" for f in inner if isinstance(f, ast.FunctionDef)}
    return found


def missing_from(page: str) -> list[str]:
    """Functions, tests, attacks and files that the audit pack names and the checkout lacks."""
    code = re.findall(r"`(\w+/[\w/]+\.py):([\w.]+)`", page)
    tests = re.findall(r"`(\w+/[\w/]+\.py)::(\w+)`", page)
    places = [("torchfsl", *named) for named in code] + [("tests", *named) for named in tests]
    lacking = [
        f"{file}:{name}"
        for base, file, name in places
        if not (ROOT / base / file).is_file() or name not in defined(ROOT / base / file)
    ]
    table = page.partition("## Claims")[2].partition("\n## ")[0].strip().splitlines()[2:]
    rows = [line.split("|")[-2] for line in table if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    lacking += [name for name in named if "." not in name and name not in attacks()]
    lacking += [name for name in named if "." in name and not importlib.util.find_spec(name)]
    files = re.findall(r"`((?:torchfsl|tests|deploy|scripts|\.github|\.ci)/[\w./-]+)`", page)
    return lacking + [name for name in files if not (ROOT / name).exists()]


def test_the_audit_pack_names_what_exists() -> None:
    page = (ROOT / "docs" / "audit-pack.md").read_text()
    assert page.count("::test_") > 15
    assert not missing_from(page)
    for there, gone in [
        (".py:fold`", ".py:fault`"), ("Opening.agree`", "Opening.disagree`"),
        ("::test_every_lie_is_named_with_its_step", "::test_every_lie"),
        ("`forged_tags` |", "`forged_bags` |"), ("build.lock`", "built.lock`"),
        ("`scripts.attacks.distinguish`", "`scripts.attacks.extinguish`"),
    ]:  # fmt: skip
        assert there in page
        assert len(missing_from(page.replace(there, gone))) == 1, gone


def test_the_audit_pack_is_one_page() -> None:
    assert len((ROOT / "docs" / "audit-pack.md").read_text().split()) <= 1200
