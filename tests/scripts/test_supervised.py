"""The loop that starts servers again, and a small run of scripts/checks/supervised.py."""

from __future__ import annotations

import collections
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import supervised
from scripts.checks.supervised import LOOP, is_good, run_batch


def loop(command: str, **how: object) -> subprocess.Popen[str]:
    words = ["sh", str(LOOP), "0.05", "sh", "-c", command]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("status", [0, 1, 2, 74, 137])
def test_the_loop_starts_a_server_again_until_its_state_is_refused(
    status: int, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    again = f"echo x >> {starts}; [ $(wc -l < {starts}) -lt 3 ] && exit {status}; exit 65"
    process = loop(again)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 65
    assert starts.read_text() == "x\n" * 3
    assert said.count(f"ended with status {status}\n") == 2


def test_who_ends_the_loop_ends_the_server_and_none_starts_again(tmp_path: Path) -> None:
    up, told = tmp_path / "up", tmp_path / "told"
    serve = f"trap 'echo x >> {told}; exit 7' TERM; echo x >> {up}; while :; do sleep 0.05; done"
    process = loop(serve)
    while not up.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 7
    assert (up.read_text(), told.read_text()) == ("x\n", "x\n")


@pytest.mark.slow
def test_a_supervised_pair_comes_back_by_itself_but_from_a_state_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("kill both", "disk full", "writes refused", "ledger gone")
    monkeypatch.setattr("scripts.checks.chaos.KINDS", kinds)
    found = run_batch(tmp_path, len(kinds), 1, collections.Counter())
    assert found["faults"] == dict.fromkeys(kinds, 1)
    assert found["by_person"] == {"ledger gone": 1}
    assert is_good(found)


def test_help_that_the_manual_does_not_speak_of_fails_the_run() -> None:
    found: dict[str, Any] = {name: [] for name in supervised.BAD} | {"model_equal": True}
    assert is_good(found | {"by_person": {"model damaged": 2}})
    assert not is_good(found | {"by_person": {"disk full": 1}})
    assert not is_good(found | {"by_person": {}, "lost_reports": [(1, 2)]})
