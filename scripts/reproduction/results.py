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


def read_results(folder: str) -> dict[str, dict[str, Any]]:
    """All results of one table by file name; empty where there are none."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((FOLDER / folder).glob("*.json"))
    }


def server_rate(cell: dict[str, Any]) -> float:
    """By which the servers multiplied the mean update; early results do not name it."""
    return float(cell.get("server_rate", 1.0))


def augmented(cell: dict[str, Any]) -> bool:
    """Whether clients trained on random crops and mirror images; early results do not say so."""
    return bool(cell.get("augment", True))
