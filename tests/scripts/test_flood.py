"""A small run of scripts/checks/flood.py: connections of nobody at every phase of a round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.checks import flood

pytest.importorskip("grpc")


@pytest.mark.slow
def test_honest_clients_are_in_the_sum_while_strangers_flood_both_servers(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert flood.main(["--seconds", "3", "--clients", "4", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [phase["phase"] for phase in found["phases"]] == ["open", "round", "close"]
    for phase in found["phases"]:
        assert phase["ok"], phase
        assert phase["connections_made"] > 100
        assert phase["most_files_open"] < 1024 - 100
