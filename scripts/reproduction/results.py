"""Small JSON files, one a run or table, that RESULTS.md is made from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path("results")


def write_result(path: Path, figures: dict[str, Any]) -> None:
    """Write the figures in one step, one line for each short list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    print(f"wrote {path}", flush=True)


def read_results(folder: str) -> dict[str, dict[str, Any]]:
    """All results of one table by file name; empty where there are none."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((FOLDER / folder).glob("*.json"))
    }
