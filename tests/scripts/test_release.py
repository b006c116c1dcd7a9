"""What keeps a checkout from being released, and what its packages' audit says."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import audit, release

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "pyproject.toml",
    "CITATION.cff",
    "SECURITY.md",
    ".github/ISSUE_TEMPLATE/config.yml",
    "torchfsl/version.py",
)
ADDRESS = "https://example.org/someone/torchfsl"
CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-26\n\n- `torchfsl`: first.\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that name the address or the version, with a changelog, as a checkout."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = release.repository_of(tmp_path)
    for name in FILES:
        file = tmp_path / name
        file.write_text(file.read_text().replace(before, release.PLACEHOLDER))
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "--all"], check=True)
    return tmp_path


def replace(file: Path, old: str, new: str) -> None:
    """Put a text in place of another one that is there."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_placeholder_fails_the_check_wherever_it_stands(checkout: Path) -> None:
    found = release.problems(checkout, "v0.1.0")
    assert {line.partition(":")[0] for line in found} == set(FILES) - {"torchfsl/version.py"}
    release.write_repository(checkout, ADDRESS)
    (checkout / "docs").mkdir()
    (checkout / "docs" / "new.md").write_text(f"[issues]({release.PLACEHOLDER}/issues)\n")
    subprocess.run(["git", "-C", checkout, "add", "--all"], check=True)
    (line,) = release.problems(checkout)
    assert line.startswith("docs/new.md: ")


def test_the_address_is_written_everywhere_by_one_command_and_can_move(checkout: Path) -> None:
    for address in (ADDRESS, "https://example.net/others/torchfsl", "https://h.example/a/b/c"):
        changed = release.write_repository(checkout, address)
        assert set(changed) == set(FILES) - {"torchfsl/version.py"}
        assert release.problems(checkout, "v0.1.0") == []
    contact = (checkout / ".github/ISSUE_TEMPLATE/config.yml").read_text()
    assert "url: https://h.example/a/b/c/security/advisories/new\n" in contact


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/someone/torchfsl",
        f"{ADDRESS}/",
        "https://example.org",
        "torchfsl",
        "",
        "https://example.org/torchfsl",
        f"{ADDRESS}?tab=readme",
        f"{ADDRESS} ",
        "git@h:a/b",
    ],
)
def test_an_address_that_is_not_that_of_a_repository_is_refused(
    address: str, checkout: Path
) -> None:
    with pytest.raises(SystemExit, match="expected https://HOST/OWNER/NAME"):
        release.write_repository(checkout, address)
    assert release.repository_of(checkout) == release.PLACEHOLDER


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("pyproject.toml", f'Issues = "{ADDRESS}', 'Issues = "https://x.org', "Issues is"),
        ("pyproject.toml", f'Security = "{ADDRESS}', f'Security = "{ADDRESS}x', "Security is"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "version.py: expected"),
        ("torchfsl/version.py", "0.1.0", "0.1.1", "version.py: expected"),
        ("CITATION.cff", "version: 0.1.0", "version: 0.0.9", "CITATION.cff: expected"),
        ("CHANGELOG.md", "2026-11-26", "to come", "expected a heading ## [0.1.0]"),
        ("CHANGELOG.md", "[0.1.0]", "[0.1.00]", "expected a heading ## [0.1.0]"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- `x`: new.\n", "under Unreleased"),
    ],
)
def test_what_does_not_agree_fails_the_check(
    name: str, old: str, new: str, found: str, checkout: Path
) -> None:
    release.write_repository(checkout, ADDRESS)
    assert release.problems(checkout, "v0.1.0") == []
    replace(checkout / name, old, new)
    assert any(found in line for line in release.problems(checkout))


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1", "v0.1.0rc1", "v0.1.1", ""])
def test_a_tag_of_another_version_fails_the_check(tag: str, checkout: Path) -> None:
    release.write_repository(checkout, ADDRESS)
    assert release.problems(checkout, tag) == [f"the tag is {tag}, expected v0.1.0"]


def test_the_addresses_of_this_checkout_agree() -> None:
    mine = [p for p in release.problems(ROOT) if not p.startswith("CHANGELOG.md")]
    assert all("placeholder" in line for line in mine), mine


def report(*packages: dict[str, Any]) -> str:
    """As pip-audit writes it."""
    return json.dumps({"dependencies": list(packages), "fixes": []})


KNOWN: dict[str, Any] = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED = {"name": "cffi", "skip_reason": "Dependency not found on PyPI"}
WEAK: dict[str, Any] = {
    "name": "grpcio",
    "version": "1.85.3",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.86"]}],
}


def test_an_audit_is_clean_only_if_every_package_had_data() -> None:
    assert audit.verdict(report(KNOWN)) == (audit.CLEAN, ["no known weakness in 1 packages"])
    assert audit.verdict(report(KNOWN, SKIPPED)) == (audit.NO_DATA, ["NO DATA for cffi"])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"fixes": []}', report(), report(SKIPPED)]
)
def test_an_audit_without_data_says_so(text: str) -> None:
    status, (line,) = audit.verdict(text)
    assert status == audit.NO_DATA
    assert line.startswith("NO DATA")


def test_a_weakness_is_named_also_if_other_packages_had_no_data() -> None:
    unmended = {**WEAK, "name": "cffi", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
    status, lines = audit.verdict(report(KNOWN, WEAK, unmended, SKIPPED))
    assert status == audit.WEAK
    assert lines == [
        "grpcio 1.85.3: PYSEC-1, mended in 1.86",
        "cffi 1.85.3: PYSEC-2, mended in no version yet",
    ]


@pytest.mark.parametrize(("bytes_made", "status"), [("echo core", 0), ("echo $RANDOM$RANDOM", 1)])
def test_the_core_for_pages_is_built_twice_and_compared(
    tmp_path: Path, bytes_made: str, status: int
) -> None:
    compiler, tree = tmp_path / "bin" / "em++", tmp_path / "tree"
    compiler.parent.mkdir()
    compiler.write_text(
        f'#!/usr/bin/env bash\nwhile [ "$1" != -o ]; do shift; done\n{bytes_made} >"$2"\n'
    )
    compiler.chmod(0o755)
    for name in ("scripts/release", "scripts/build_wasm.sh"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    header = "torchfsl/kernels/csrc/client/torchfsl_client.h"
    (tree / header).parent.mkdir(parents=True)
    shutil.copy(ROOT / header, tree / header)
    given = {"PATH": f"{compiler.parent}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": "1"}
    done = subprocess.run(
        [tree / "scripts" / "release", "core"], env=given, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    if status == 0:
        digest = hashlib.sha256(b"core\n").digest()
        assert f"equal: {digest.hex()} core.wasm" in done.stdout
        assert f"integrity: sha256-{base64.b64encode(digest).decode()}" in done.stdout
