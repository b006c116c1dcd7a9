"""Recommenders on Amazon Beauty and Sports, a run a preset, data set and seed.

A run sums its rounds in the clear (`plain`); its first rounds run a second time through both
servers (`fsl`), and both must then hold the same model, bit for bit. Runs resume.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, Final

from scripts.bench import measure as bench_measure
from scripts.reproduction.accuracy import Progress, run_or_read
from scripts.reproduction.results import write_result
from training.config import Config
from training.presets import PRESETS

DATASETS: Final = {"beauty": "amazon-beauty", "sports": "amazon-sports"}
PRESET_NAMES: Final = ("din", "din-small", "mf", "ncf", "deepfm", "sasrec")
RANKED, IN_CATALOGUE = 2000, 200
"""Users whose held-out item is ranked among 99 negatives, and in the whole catalogue."""


def run_recommenders(
    names: list[str],
    seeds: list[int],
    *,
    data: Path | None,
    runs: Path,
    rounds: int | None,
    fsl_rounds: int,
    command: str,
) -> None:
    """Run what has no result yet.

    Args:
        names: `PRESET-DATASET` each.
        seeds: a run for each.
        data: folder of the data sets.
        runs: what unfinished runs need is kept there.
        rounds: of a run; None for the preset's.
        fsl_rounds: that run through both servers, too.
        command: goes into the result.
    """
    if data is None:
        raise SystemExit("recommendation needs --data, a folder with amazon-beauty in it")
    for name in names:
        preset, _, dataset = name.rpartition("-")
        if preset not in PRESET_NAMES or dataset not in DATASETS:
            raise SystemExit(
                f"--cell {name}: give PRESET-DATASET, of {', '.join(PRESET_NAMES)} and "
                f"{', '.join(DATASETS)}"
            )
        for seed in seeds:
            config = config_of(preset, data / DATASETS[dataset], seed, rounds)
            label = f"{name}-{config.rounds}-seed{seed}"
            target = Path("results") / "recommendation" / f"{label}.json"
            if target.exists():
                print(f"{label}: {target} is here; remove it to run it again", flush=True)
                continue
            print(label, flush=True)
            result = run(config, dataset, runs / "recommendation" / label, fsl_rounds)
            write_result(target, {**result, "command": command})


def config_of(preset: str, data: Path, seed: int, rounds: int | None) -> Config:
    """Settings of a run: the preset's, with gradients of a round's clients taken together."""
    base = PRESETS[preset]
    return dataclasses.replace(
        base,
        data=str(data),
        rounds=rounds or base.rounds,
        seed=seed,
        aggregation="plain",
        eval_every=100,
        threads=1,
        local=dataclasses.replace(base.local, together=True),
        recommendation=dataclasses.replace(
            base.recommendation, ranked_users=RANKED, catalogue_users=IN_CATALOGUE
        ),
    )


def run(config: Config, dataset: str, folder: Path, fsl_rounds: int) -> dict[str, Any]:
    """The first rounds under both aggregations, then all rounds in the clear."""
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress("auc")
    unranked = dataclasses.replace(config.recommendation, ranked_users=0, catalogue_users=0)
    first = dataclasses.replace(config, rounds=fsl_rounds, recommendation=unranked)
    by_fsl = run_or_read(dataclasses.replace(first, aggregation="fsl"), folder / "fsl", progress)
    by_plain = run_or_read(first, folder / "first", progress)
    if by_fsl["model_sha256"] != by_plain["model_sha256"]:
        raise RuntimeError(f"after {fsl_rounds} rounds fsl and plain hold other models")
    summary = run_or_read(config, folder / "plain", progress)
    lines = (folder / "plain" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {
        "preset": config.preset,
        "dataset": dataset,
        "seed": config.seed,
        "rounds": summary["rounds"],
        "clients_per_round": config.clients_per_round,
        "curve": [(r["round"], r["auc"], r["mean_auc"]) for r in records if "auc" in r],
        "metrics": summary["metrics"],
        "ranked_users": RANKED,
        "catalogue_users": IN_CATALOGUE,
        "test": summary["test"],
        "baselines": summary["baselines"],
        "exact_rounds": summary["exact_rounds"],
        "model_sha256": summary["model_sha256"],
        "fsl": {
            "rounds": fsl_rounds,
            "exact_rounds": by_fsl["exact_rounds"],
            "upload_bytes": by_fsl["upload_bytes_per_client_round"],
            "download_bytes": by_fsl["download_bytes_per_client_round"],
        },
        "clipped_values": summary["clipped_values"],
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**summary["versions"], "machine": bench_measure.machine()},
    }
