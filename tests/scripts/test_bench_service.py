"""The benchmark of the two servers runs to its end and accounts for all of its time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_it_measures_a_small_round_and_what_transport_costs(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "scripts.bench.service", "--clients", "4", "--at-once", "2",
        "--rows", "500", "--k-max", "16", "--dense", "64", "--sample", "2", "4",
        "--json", str(tmp_path / "found.json"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["errors"], found["accepted"]) == ([], 4)
    assert 0 < found["evaluation_cpu_seconds"] < found["servers_cpu_seconds"]
    share = 1 - found["evaluation_cpu_seconds"] / found["servers_cpu_seconds"]
    assert found["transport_and_storage_share"] == share
    threads = found["event_loops_cpu_seconds"] + found["grpc_threads_cpu_seconds"]
    assert 0 < threads < found["servers_cpu_seconds"]
