"""DIN's AUC by round under the three aggregations, on one data set and seed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from scripts.reproduction.accuracy import Progress, run_or_read
from training.presets import PRESETS

AGGREGATIONS = ("plain", "dense", "fsl")


def din_auc(data: Path | None, runs: Path, rounds: int) -> dict[str, Any]:
    """Train three times; `fsl` and `plain` must end with the same model."""
    if data is None:
        raise SystemExit("din-auc needs --data, a folder with amazon-beauty in it")
    curves = {}
    for aggregation in AGGREGATIONS:
        config = dataclasses.replace(
            PRESETS["din-published"],
            data=str(data / "amazon-beauty"),
            rounds=rounds,
            aggregation=aggregation,
            eval_every=20,
            threads=1,
        )
        folder = runs / "din-auc" / aggregation
        summary = run_or_read(config, folder, Progress("auc"))
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        curves[aggregation] = {
            "curve": [(r["round"], r["auc"]) for r in map(json.loads, lines) if "auc" in r],
            "auc_last_three": summary["mean_of_last_three"],
            "popularity_auc": summary["baselines"],
            "upload_bytes": summary["upload_bytes_per_client_round"],
            "exact_rounds": summary["exact_rounds"],
            "rounds": summary["rounds"],
            "model_sha256": summary["model_sha256"],
        }
    if curves["plain"]["model_sha256"] != curves["fsl"]["model_sha256"]:
        raise RuntimeError("fsl and plain end with different models")
    return curves
