"""A small run of scripts/checks/crash.py: servers and clients killed at random moments."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from scripts.checks import crash as crash_test


@pytest.mark.slow
def test_nothing_is_lost_counted_twice_or_opened_twice_under_kill_9(tmp_path: Path) -> None:
    options = argparse.Namespace(rounds=3, kills=8, clients=2, round_seconds=4.0, seed=1)
    found = crash_test.run(options, tmp_path)
    assert sum(found["kills"].values()) >= 8
    assert found["rounds_opened"] > 0
    assert found["wrong_sums"] == found["lost_reports"] == found["steps_changed"] == []
    assert found["model_equal"]
