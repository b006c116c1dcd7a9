"""Recommenders on Amazon Beauty and Sports, one run a cell and seed. Runs resume.

A cell is `PRESET-DATASET`, `narrow-PRESET-DATASET` (of DIN: two bytes a value, up and down),
`central-PRESET-DATASET` (the same model and samples trained in one place) or `trial-NAME`, one of
`TRIALS`: a change of preset `din`, judged on validation items of Beauty, from which the presets'
settings follow.

Where `--fsl-rounds` is at least a run's rounds, the whole run goes through both servers. Else it
sums its rounds in the clear (`plain`), and the first ones a second time through both servers; both
must then hold the same model, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from scripts.bench import measure as bench_measure
from scripts.reproduction.results import read_results, write_result
from scripts.reproduction.runs import Progress, records, run_or_read
from training.config import Config
from training.presets import PRESETS, narrowed

DATASETS: Final = {"beauty": "amazon-beauty", "sports": "amazon-sports"}
PRESET_NAMES: Final = ("din", "din-small", "din-published", "mf", "ncf", "deepfm", "sasrec")
NARROWED: Final = ("din", "din-small", "din-published")
RANKED, IN_CATALOGUE = 2000, 200
"""Users whose held-out item is ranked among 99 negatives, and in the whole catalogue."""
Changes = Mapping[str, Any]
"""By setting its value, by section those of its settings that differ."""
CENTRAL: Final[Changes] = {
    "aggregation": "central",
    "local": {"batch_size": 1024},
    "server": {"lr": 0.003},
}
"""What central training of a preset changes."""
TRIALS: Final[dict[str, Changes]] = {
    "din": {},
    "dropout-0": {"recommendation": {"dropout": 0.0}},
    "dropout-0.5": {"recommendation": {"dropout": 0.5}},
    "user-table": {"recommendation": {"user_table": True}},
    "adam-of-all-rows": {"server": {"optimizer": "adam", "table_rate": 1.0}},
    "tables-at-rate-1": {"server": {"table_rate": 1.0}},
    "rate-0.005": {"server": {"lr": 0.005}},
    "mean-0.99": {"server": {"average": 0.99}},
    "mean-0.995": {"server": {"average": 0.995}},
    "central": CENTRAL,
    "central-rate-0.001": {**CENTRAL, "server": {"lr": 0.001}},
    "central-rate-0.01": {**CENTRAL, "server": {"lr": 0.01}},
}
"""What a trial changes of preset `din` with a mean of models that keeps `TRIAL_MEAN`."""
TRIAL_MEAN: Final = 0.985
TRIAL_ROUNDS: Final = 300


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
        names: cells.
        seeds: a run for each.
        data: folder of the data sets.
        runs: what unfinished runs need is kept there.
        rounds: of a run; None for the preset's, or of a trial `TRIAL_ROUNDS`.
        fsl_rounds: that run through both servers, too.
        command: goes into the result.

    Raises:
        SystemExit: no data, or a name that is no cell.
    """
    if data is None:
        raise SystemExit("recommendation needs --data, a folder with amazon-beauty in it")
    for name in names:
        for seed in seeds:
            dataset, config = config_of(name, data, seed, rounds)
            label = f"{name}-{config.rounds}-seed{seed}"
            if label in read_results("recommendation"):
                print(f"{label}: is here; remove its result to run it again", flush=True)
                continue
            print(label, flush=True)
            result = run(config, runs / "recommendation" / label, fsl_rounds)
            cell = {"cell": name, "dataset": dataset}
            write_result("recommendation", label, {**cell, **result, "command": command})


def config_of(name: str, data: Path, seed: int, rounds: int | None) -> tuple[str, Config]:
    """Data set and settings of a cell; the gradients of a round's clients are taken together."""
    kind, _, rest = name.partition("-")
    if kind == "trial" and rest in TRIALS:
        base = dataclasses.replace(
            PRESETS["din"],
            rounds=TRIAL_ROUNDS,
            evaluate="validation",
            server=dataclasses.replace(PRESETS["din"].server, average=TRIAL_MEAN),
        )
        return "beauty", _run_config(_changed(base, TRIALS[rest]), data, "beauty", seed, rounds)
    preset, _, dataset = (rest if kind in ("central", "narrow") else name).rpartition("-")
    known = NARROWED if kind == "narrow" else PRESET_NAMES
    if preset not in known or dataset not in DATASETS:
        raise SystemExit(
            f"--cell {name}: give PRESET-DATASET, narrow-PRESET-DATASET or "
            f"central-PRESET-DATASET, of {', '.join(PRESET_NAMES)} and {', '.join(DATASETS)}, or "
            "one of " + ", ".join(f"trial-{trial}" for trial in TRIALS)
        )
    base = PRESETS[preset]
    if kind == "central":
        base = _changed(base, CENTRAL)
    if kind == "narrow":
        base = narrowed(base)
    return dataset, _run_config(base, data, dataset, seed, rounds)


def _run_config(base: Config, data: Path, dataset: str, seed: int, rounds: int | None) -> Config:
    central = base.aggregation == "central"
    return dataclasses.replace(
        base,
        data=str(data / DATASETS[dataset]),
        rounds=rounds or base.rounds,
        seed=seed,
        aggregation="central" if central else "plain",
        eval_every=100,
        threads=1,
        local=base.local if central else dataclasses.replace(base.local, together=True),
        recommendation=dataclasses.replace(
            base.recommendation, ranked_users=RANKED, catalogue_users=IN_CATALOGUE
        ),
    )


def _changed(config: Config, changes: Changes) -> Config:
    return dataclasses.replace(
        config,
        **{
            name: dataclasses.replace(getattr(config, name), **value)
            if isinstance(value, Mapping)
            else value
            for name, value in changes.items()
        },
    )


def run(config: Config, folder: Path, fsl_rounds: int) -> dict[str, Any]:
    """All rounds, and the first `fsl_rounds` of them through both servers."""
    torch.set_num_threads(config.torch_threads)  # 1: models are small, and waiting threads spin
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress("auc")
    result: dict[str, Any] = {"fsl": None}
    if config.aggregation == "plain" and fsl_rounds >= config.rounds:
        config = dataclasses.replace(config, aggregation="fsl")
    elif config.aggregation == "plain" and fsl_rounds:
        result["fsl"] = _first_rounds(config, folder, fsl_rounds, progress)
    summary = run_or_read(config, folder / config.aggregation, progress)
    rounds = records(folder / config.aggregation)
    if config.aggregation == "fsl":
        result["fsl"] = _through_servers(summary)
    return result | {
        "preset": config.preset,
        "aggregation": config.aggregation,
        "evaluate": config.evaluate,
        "seed": config.seed,
        "rounds": summary["rounds"],
        "clients_per_round": config.clients_per_round,
        "curve": [(r["round"], r["auc"], r.get("mean_auc")) for r in rounds if "auc" in r],
        "metrics": summary["metrics"],
        "ranked_users": RANKED,
        "catalogue_users": IN_CATALOGUE,
        "test": summary.get("test"),
        "baselines": summary["baselines"],
        "exact_rounds": summary["exact_rounds"],
        "model_sha256": summary["model_sha256"],
        "clipped_values": summary["clipped_values"],
        "seconds_of_rounds": sum(
            config.clients_per_round * r["client_seconds"] + r["server_seconds"] for r in rounds
        ),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**summary["versions"], "machine": bench_measure.machine()},
    }


def _first_rounds(
    config: Config, folder: Path, fsl_rounds: int, progress: Progress
) -> dict[str, Any]:
    """The first rounds under both aggregations, without rankings."""
    unranked = dataclasses.replace(config.recommendation, ranked_users=0, catalogue_users=0)
    first = dataclasses.replace(config, rounds=fsl_rounds, recommendation=unranked)
    by_fsl = run_or_read(dataclasses.replace(first, aggregation="fsl"), folder / "first", progress)
    by_plain = run_or_read(first, folder / "first-plain", progress)
    if by_fsl["model_sha256"] != by_plain["model_sha256"]:
        raise RuntimeError(f"after {fsl_rounds} rounds fsl and plain hold other models")
    return _through_servers(by_fsl)


def _through_servers(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rounds": summary["rounds"],
        "exact_rounds": summary["exact_rounds"],
        "upload_bytes": summary["upload_bytes_per_client_round"],
        "download_bytes": summary["download_bytes_per_client_round"],
    }
