"""The audit of the noise: an honest server is not accused, and planted faults are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.attacks import canary_audit as audit
from scripts.reproduction import privacy_tables
from scripts.reproduction.page_table import TABLES
from scripts.reproduction.results import write_result

pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")

Patch = pytest.MonkeyPatch
assert privacy_tables  # adds the table
FEW = 30_000
"""Canaries: enough for the estimate."""


def test_an_honest_server_is_not_accused() -> None:
    for seed in range(2):
        found = audit.play(2.0, audit.FAULTS["none"], seed, FEW)
        assert 0.5 < found.counted < 2.0
        assert found.estimated == pytest.approx(2.0, rel=0.12)
        assert found.equal
        assert not audit.shows(found, 2.0)


@pytest.mark.slow
def test_half_the_noise_is_seen_by_counting_alone() -> None:
    found = audit.play(2.0, audit.FAULTS["half the noise"], 0)
    assert 2.0 < found.counted < found.estimated
    assert audit.shows(found, 2.0)


@pytest.mark.parametrize(
    ("fault", "theory"), [("canaries half as far apart", 10.7), ("a lost write", 9.9)]
)
def test_other_faults_are_seen_by_the_estimate(fault: str, theory: float) -> None:
    found = audit.play(8.0, audit.FAULTS[fault], 0, FEW)
    assert found.estimated == pytest.approx(theory, rel=0.04)
    assert audit.shows(found, 8.0)


def test_bare_values_are_seen_at_once() -> None:
    found = audit.play(8.0, audit.FAULTS["one value in a thousand bare"], 0, FEW)
    assert 10 < found.bare < 60
    assert audit.shows(found, 8.0)


def test_the_table_has_what_the_audit_finds(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    found = audit.planted(canaries=3000)
    write_result("tables", "canaries", {"command": "c", "date": "today", **found})
    head, _, *rows = TABLES["canaries"].render().splitlines()[:7]
    assert head.startswith("| fault of a server | counted, at 2 |")
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in audit.FAULTS]
    last = found["audits"]["a lost write"]["8"]
    assert f"| {last['counted']:.2f} | {last['estimated']:.2f} | 0 |" in rows[-1]


def test_the_strategy_leaves_the_draws() -> None:
    """C times the noise is the fresh draws, for whatever the server read of past noise."""
    lost = [4, 12]
    matrix = audit.strategy(np.array([1.0, 0.5, 0.25, 0.125]), lost)
    assert matrix[5, 0] == 0.5  # round 5 reads in round 4's place what round 0 left
    assert matrix[5, 4] == 0.0
    assert matrix[6, 5] == 0.5
