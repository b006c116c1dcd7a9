"""DIN's AUC by round under the three aggregations, on one data set and seed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from scripts.reproduction.runs import Progress, curve, data_folder, run_or_read
from training.presets import PRESETS

AGGREGATIONS = ("plain", "dense", "fsl")


def din_auc(data: Path | None, runs: Path, rounds: int) -> dict[str, Any]:
    """Train three times; `fsl` and `plain` must end with the same model."""
    beauty, curves = data_folder(data, "din-auc", "amazon-beauty"), {}
    for aggregation in AGGREGATIONS:
        config = dataclasses.replace(
            PRESETS["din-published"],
            data=str(beauty),
            rounds=rounds,
            aggregation=aggregation,
            eval_every=20,
            threads=1,
        )
        folder = runs / "din-auc" / aggregation
        summary = run_or_read(config, folder, Progress("auc"))
        curves[aggregation] = {
            "curve": curve(folder, "auc"),
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
