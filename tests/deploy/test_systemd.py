"""The systemd units: what systemd itself says of them, and what they must not lose."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = FOLDER / "torchfsl.service"
UNITS = [UNIT, FOLDER / "torchfsl-auditor.service"]
BOTH = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
MOST_EXPOSED = 2.0
"""Of systemd's scale from 0 (nothing to attack) to 10."""


def service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser["Service"]


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Restart", "always"),
        ("UMask", "0077"),
        ("StateDirectoryMode", "0700"),
        ("LimitCORE", "0"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("CapabilityBoundingSet", ""),
    ],
)
def test_it_keeps_what_secrets_and_restarts_rest_on(name: str, value: str, unit: Path) -> None:
    assert service(unit)[name] == value


def test_a_server_says_when_it_is_ready_and_allows_files_for_many_connections() -> None:
    assert service(UNIT)["Type"] == "notify"
    assert int(service(UNIT)["LimitNOFILE"]) >= 16384


def installed(unit: Path, folder: Path) -> Path:
    """The unit with a command that exists here."""
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text())
    (folder / unit.name).write_text(text)
    return folder / unit.name


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd-analyze is not installed")
    words = [command, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@BOTH
def test_systemd_finds_no_fault_in_it(unit: Path, tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", installed(unit, tmp_path))
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


@BOTH
def test_systemd_finds_little_to_attack(unit: Path, tmp_path: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", installed(unit, tmp_path))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd before 250 judges running units only")
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED
