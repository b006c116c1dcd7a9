"""A small run of scripts/checks/chaos.py: each kind of fault once, at two servers under load."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from scripts.checks.chaos import BAD, add, read, run_batch
from scripts.checks.chaos_faults import KINDS


@pytest.mark.slow
def test_every_fault_ends_in_recovery_or_a_stated_refusal_and_no_sum_is_wrong(
    tmp_path: Path,
) -> None:
    hit: collections.Counter[str] = collections.Counter()
    found = run_batch(tmp_path, len(KINDS), 1, hit)
    assert sum(found["faults"].values()) == len(KINDS)
    assert {name: found[name] for name in BAD} == {name: [] for name in BAD}
    assert found["rounds_opened"] > 0
    assert found["model_equal"]


def test_batches_add_up_and_a_run_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    found = {
        "rounds": 3, "rounds_opened": 2, "reports_accepted": 5, "model_equal": True,
        "faults": {"kill": 2}, "statuses": {"disk full": {74: 1}}, "mounted": True,
        **{name: [] for name in BAD},
    }  # fmt: skip
    for _ in range(2):
        total = add(path, read(path), found, collections.Counter({"kill: open": 2}))
    assert read(path) == total
    assert (total["batches"], total["models_equal"], total["rounds"]) == (2, 2, 6)
    assert (total["faults"], total["states_hit"]) == ({"kill": 4}, {"kill: open": 4})
    assert total["statuses"] == {"disk full": {"74": 2}}
