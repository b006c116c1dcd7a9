"""Recommenders on Amazon Beauty and Sports, one run per cell and seed. Runs resume.

A cell's name has one of four forms. `PRESET-DATASET` is a preset as it is. `narrow-PRESET-DATASET`
is of DIN, with two bytes per value, up and down. `central-PRESET-DATASET` trains the same model on
the same samples in one place.

`trial-NAME` is one of `TRIALS`: a change of preset `din` or `sasrec`, judged on validation items of
Beauty. The presets' settings follow from these trials.

If `--fsl-rounds` is at least a run's rounds, the whole run goes through both servers. Otherwise the
run sums its rounds in plaintext (`plain`), and repeats the first rounds through both servers. Both
models must then be bit-identical.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import itertools
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from scripts.bench import measure as bench_measure
from scripts.reproduction.results import Figures, read_results, write_result
from scripts.reproduction.runs import (
    Progress,
    changed,
    data_folder,
    records,
    run_or_read,
    summarised,
    write_once,
)
from training.config import Config
from training.data.interactions import ATTRIBUTES, SEQUENCES
from training.presets import PRESETS, narrowed

DATASETS: Final = {"beauty": "amazon-beauty", "sports": "amazon-sports"}
PRESET_NAMES: Final = ("din", "din-small", "din-published", "mf", "ncf", "deepfm", "sasrec")
NARROWED: Final = ("din", "din-small", "din-published")
RANKED = IN_CATALOGUE = 1_000_000
"""Users whose held-out item is ranked among 99 negatives, and in the whole catalogue: all."""
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
    "norm-1": {"fsl": {"l2_norm": 1.0, "sum_bound": True}},
    "norm-3": {"fsl": {"l2_norm": 3.0, "sum_bound": True}, "encoding": {"ring_bits": 48}},
    "one-category": {},
    "sasrec": {},
    "sasrec-negatives-32": {"recommendation": {"negatives": 32}},
    "sasrec-rate-0.02": {"server": {"lr": 0.02}},
}
"""By trial, changes of `din` or `sasrec` with `TRIAL_MEAN` as weight of the older models."""
ONE_CATEGORY: Final = Path("runs", "reproduce", "one-category")
"""Data of `trial-one-category`."""
TRIAL_MEAN: Final = 0.985
TRIAL_ROUNDS: Final = 300
_SET: Final = ("preset", "aggregation", "evaluate", "seed", "clients_per_round")
_KEPT: Final = "rounds", "metrics", "baselines", "exact_rounds", "model_sha256", "clipped_values"


def run_recommenders(
    names: list[str],
    seeds: list[int],
    *,
    data: Path | None,
    rounds: int | None,
    fsl_rounds: int,
    **where: Any,
) -> None:
    """Run the cells without a result.

    Args:
        names: names of cells.
        seeds: seeds, with a run for each.
        data: folder of the data sets.
        rounds: rounds of a run; None for those of the preset, or for a trial `TRIAL_ROUNDS`.
        fsl_rounds: number of first rounds that also run through both servers.
        where: see `run_cell`.

    Raises:
        SystemExit: if there are no data, or a name is not a cell.
    """
    folder = data_folder(data, "recommendation", DATASETS["beauty"]).parent
    if "trial-one-category" in names:
        _write_one_category(folder / DATASETS["beauty"])
    for name, seed in itertools.product(names, seeds):
        dataset, config = config_of(name, folder, seed, rounds)
        about = {"cell": name, "dataset": dataset}
        run_cell("recommendation", about, config, fsl_rounds, **where)


def run_cell(
    table: str, about: Figures, config: Config, fsl_rounds: int, *, runs: Path, command: str
) -> None:
    """Run a cell with its seed, unless the table has its result; rank all users where that has few.

    Args:
        table: of results.
        about: goes into the result: the name of the cell, and more.
        config: settings of the run.
        fsl_rounds: rounds that both servers run as well.
        runs: what unfinished runs need is kept there.
        command: goes into the result.
    """
    label = f"{about['cell']}-{config.rounds}-seed{config.seed}"
    folder = runs / table / label
    known = read_results(table).get(label, {"ranking": None})
    ranks = config.evaluate == "test" and config.recommendation.catalogue_users
    if ranks and "ranking" not in known:
        print(label, flush=True)
        write_result(table, label, ranked_again(known, config, folder))
        return
    make = functools.partial(run, config, folder, fsl_rounds)
    write_once(table, label, lambda: about | make(), command)


def config_of(name: str, data: Path, seed: int, rounds: int | None) -> tuple[str, Config]:
    """Data set and settings of a cell; the gradients of a round's clients are taken together."""
    kind, _, rest = name.partition("-")
    if kind == "trial" and rest in TRIALS:
        trial = {"rounds": TRIAL_ROUNDS, "evaluate": "validation"}
        base = changed(PRESETS["sasrec" if rest.startswith("sasrec") else "din"], **trial)
        base = changed(changed(base, server={"average": TRIAL_MEAN}), **TRIALS[rest])
        config = _run_config(base, data, "beauty", seed, rounds)
        config = changed(config, recommendation={"ranked_users": 0, "catalogue_users": 0})
        alike = rest == "one-category"
        return "beauty", changed(config, data=str(ONE_CATEGORY)) if alike else config
    preset, _, dataset = (rest if kind in ("central", "narrow") else name).rpartition("-")
    known = NARROWED if kind == "narrow" else PRESET_NAMES
    if preset not in known or dataset not in DATASETS:
        raise SystemExit(
            f"--cell is {name}: choose PRESET-DATASET, narrow-PRESET-DATASET or "
            f"central-PRESET-DATASET with a preset of {', '.join(PRESET_NAMES)} and a data set of "
            f"{', '.join(DATASETS)}, or one of " + ", ".join(f"trial-{trial}" for trial in TRIALS)
        )
    base = PRESETS[preset]
    if kind == "central":
        base = changed(base, **CENTRAL)
    if kind == "narrow":
        base = narrowed(base)
    return dataset, _run_config(base, data, dataset, seed, rounds)


def _run_config(base: Config, data: Path, dataset: str, seed: int, rounds: int | None) -> Config:
    central = base.aggregation == "central"
    return changed(
        base,
        data=str(data / DATASETS[dataset]),
        rounds=rounds or base.rounds,
        seed=seed,
        aggregation="central" if central else "plain",
        eval_every=100,
        threads=1,
        local={} if central else {"together": True},
        recommendation={"ranked_users": RANKED, "catalogue_users": IN_CATALOGUE},
    )


def _write_one_category(data: Path) -> None:
    """A copy of the data in which all items have the same attribute."""
    ONE_CATEGORY.mkdir(parents=True, exist_ok=True)
    shutil.copy(data / SEQUENCES, ONE_CATEGORY)
    items = json.loads(gzip.decompress((data / ATTRIBUTES).read_bytes()))
    alike = json.dumps({item: [1] for item in items})
    (ONE_CATEGORY / ATTRIBUTES).write_bytes(gzip.compress(alike.encode()))


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
        **{name: getattr(config, name) for name in _SET},
        **summarised(summary, *_KEPT),
        "curve": [(r["round"], r["auc"], r.get("mean_auc")) for r in rounds if "auc" in r],
        "ranking": summary["ranking"],
        "test": summary.get("test"),
        "seconds_of_rounds": sum(
            config.clients_per_round * r["client_seconds"] + r["server_seconds"] for r in rounds
        ),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**summary["versions"], "machine": bench_measure.machine()},
    }


def ranked_again(known: Mapping[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """A result whose rankings have fewer users, with those of all.

    The run is made again, or read where its folder still has it. Its rounds are summed in the
    clear, which ends with the same model.

    Raises:
        RuntimeError: the model is another one.
    """
    torch.set_num_threads(config.torch_threads)
    folder.mkdir(parents=True, exist_ok=True)
    summary = run_or_read(config, folder / config.aggregation, Progress("auc"))
    if summary["model_sha256"] != known["model_sha256"]:
        raise RuntimeError(
            f"the model of {folder.name} differs from the model of its stored result: remove the "
            "result, and run the cell again"
        )
    kept = {name: own for name, own in known.items() if not name.endswith("_users")}
    found = {name: summary[name] for name in ("ranking", "test", "baselines")}
    return kept | found | {"date": time.strftime("%Y-%m-%d")}


def _first_rounds(
    config: Config, folder: Path, fsl_rounds: int, progress: Progress
) -> dict[str, Any]:
    """The first rounds under both aggregations, without rankings."""
    unranked = {"ranked_users": 0, "catalogue_users": 0}
    first = changed(config, rounds=fsl_rounds, recommendation=unranked)
    by_fsl = run_or_read(dataclasses.replace(first, aggregation="fsl"), folder / "first", progress)
    by_plain = run_or_read(first, folder / "first-plain", progress)
    if by_fsl["model_sha256"] != by_plain["model_sha256"]:
        raise RuntimeError(f"after {fsl_rounds} rounds, fsl and plain have different models")
    return _through_servers(by_fsl)


def _through_servers(summary: Mapping[str, Any]) -> dict[str, Any]:
    download = {"download_bytes": summary["download_bytes_per_client_round"]}
    return summarised(dict(summary), "rounds", "exact_rounds") | download
