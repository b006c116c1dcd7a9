"""Results: JSON lines, one record for each run or table, from which the pages' tables are made.

`results/TABLE.jsonl` has the runs of a table of many runs, `results/tables.jsonl` every table that
one command measures in one go. A record's `name` is unique in its file; lines are sorted by it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path("results")
TABLES = "tables"
Figures = dict[str, Any]


def write_result(table: str, name: str, figures: Figures) -> None:
    """Write or replace one record in one step, while no other process writes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        records = {**read_results(table), name: figures}
        path, part = FOLDER / f"{table}.jsonl", FOLDER / f"{table}.jsonl.part"
        lines = (json.dumps({"name": own, **records[own]}) + "\n" for own in sorted(records))
        part.write_text("".join(lines), encoding="utf-8")
        part.replace(path)
    finally:
        os.close(folder)  # which also unlocks
    print(f"wrote {name} to {path}", flush=True)


def read_results(table: str) -> dict[str, Figures]:
    """The records of a table by name; empty if there is no file."""
    path = FOLDER / f"{table}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {record.pop("name"): record for record in map(json.loads, lines)}


def read_result(name: str) -> Figures | None:
    """A table that one command measures, or None before that."""
    return read_results(TABLES).get(name)


_USUAL = {
    "server_rate": 1.0,
    "server_momentum": 0.0,
    "server_decay": 1.0,
    "augment": True,
    "precision": "bfloat16",
    "threads": 1,
}
"""Settings that early results do not name; TREC's precision is always float32."""


def read_accuracies(table: str) -> list[Figures]:
    """Training runs of one table by name, every cell with all settings.

    A run that evaluated the mean of its models as well stands here twice: with its latest model, of
    which `average` is 0, and with the mean. Of runs with equal cells the first is here: averaging
    changes no model, and threads only the order of floating-point sums.
    """
    runs: dict[str, Figures] = {}
    for run in read_results(table).values():
        cell = {**_USUAL, **run["cell"]}
        found = {0.0: (run["accuracy_percent"], run.get("curve"))}
        if "mean_curve" in run:
            found[cell["average"]] = run["mean_accuracy_percent"], run["mean_curve"]
        for average, (accuracy, curve) in found.items():
            own = {**cell, "average": average}
            name = json.dumps({**own, "threads": 1}, sort_keys=True)
            as_it = {**run, "cell": own, "accuracy_percent": accuracy, "curve": curve}
            runs.setdefault(name, as_it)
    return list(runs.values())
