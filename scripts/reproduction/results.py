"""Small JSON files, one a run or table, that RESULTS.md is made from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path("results")


def write_result(path: Path, figures: dict[str, Any]) -> None:
    """Write the figures in one step, one line for each of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in figures.items()]
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os.replace(part, path)
    print(f"wrote {path}", flush=True)


def read_result(name: str) -> dict[str, Any] | None:
    """One table's file, or None where it has not been made."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return figures


_USUAL = {
    "server_rate": 1.0,
    "server_momentum": 0.0,
    "server_decay": 1.0,
    "augment": True,
    "precision": "bfloat16",
    "threads": 1,
}
"""What early results do not say of their cells; TREC's precision is always float32."""


def read_accuracies(folder: str) -> list[dict[str, Any]]:
    """Training runs of one table by file name, every cell with all settings.

    A run that evaluated the mean of its models as well stands here twice: with its latest model, of
    which `average` is 0, and with the mean. Of runs with equal cells the first is here: averaging
    changes no model, and threads only the order of floating-point sums.
    """
    runs: dict[str, dict[str, Any]] = {}
    for path in sorted((FOLDER / folder).glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
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
