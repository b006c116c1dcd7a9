"""scripts/checks/booted.py: what it takes from the manual, and a small run where a machine is."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.checks import booted, machines

ROOT = Path(__file__).resolve().parents[2]
MACHINE = os.environ.get("TORCHFSL_TEST_MACHINE", "")


def test_the_machines_get_what_the_manual_prints() -> None:
    commands = machines.printed_commands()
    assert commands[0].startswith("python3 -m venv /opt/torchfsl && ")
    assert not any("systemctl" in command or "#" in command for command in commands)
    for command in commands:
        for word in command.split():
            if word.startswith("deploy/"):
                assert (ROOT / word).exists()


def test_a_manual_that_does_not_end_with_the_start_is_no_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "operations.md"
    page.write_text("\n## Under systemd\n\n    install one thing\n\n## Next\n\n    systemctl\n")
    monkeypatch.setattr(machines, "MANUAL", page)
    with pytest.raises(SystemExit, match="does not end with starting the unit"):
        machines.printed_commands()


def test_ends_are_told_as_the_loop_tells_them() -> None:
    said = (
        "torchfsl.service: Main process exited, code=exited, status=74/IOERR\n"
        "torchfsl.service: Main process exited, code=killed, status=9/KILL\n"
        "torchfsl.service: Main process exited, code=dumped, status=6/ABRT\n"
    )
    unit: Any = SimpleNamespace(inside=lambda *_: said)
    servers: Any = SimpleNamespace(processes=[unit, None])
    assert booted.Booted.log(servers, 0) == (
        "ended with status 74\nended with status 137\nended with status 134\n"
    )
    assert booted.Booted.log(servers, 1) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may go on")
def test_who_is_not_root_is_told_so() -> None:
    words = [sys.executable, "-m", "scripts.checks.booted", "--root", "nowhere"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs root" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not MACHINE, reason="TORCHFSL_TEST_MACHINE names no folder with a Debian")
def test_two_booted_machines_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("kill both", "writes refused", "ledger gone")
    monkeypatch.setattr("scripts.checks.chaos.KINDS", kinds)
    with booted.Booted(tmp_path / "run", Path(MACHINE), clients=3) as servers:
        faults = booted.UnitFaults(servers, 1)
        try:
            found = booted.run_rounds(servers, faults, len(kinds), 1, collections.Counter(), 3)
        finally:
            servers.stop()
            faults.unmount()
    assert dict(faults.by_person) == {"ledger gone": 1}
    assert booted.is_good(found | {"by_person": dict(faults.by_person)})
