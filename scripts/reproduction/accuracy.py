"""Tables 7 and 8: accuracy against compression, one training run per cell (`cells.py`).

A run aggregates its rounds in plaintext (`plain`), on the same quantised updates as the protocol.
It repeats its first rounds through both servers (`fsl`), and both models must then be
bit-identical. Runs resume after an interruption, and several processes may work through the same
list.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench import measure as bench_measure
from scripts.reproduction.cells import Cell
from scripts.reproduction.runs import Progress, curve, locked, run_or_read, summarised, write_once
from training.config import Config

LAST = 5
"""A run's accuracy is the mean of its last so many evaluations, ten rounds apart (fifty for
images): a single evaluation on TREC's 500 questions moves by a point from one to the next."""

_KEPT = "exact_rounds", "model_sha256"


def run_cells(
    cells: list[Cell],
    *,
    data_root: Path | None,
    runs: Path,
    fsl_rounds: int,
    workers: int,
    command: str,
) -> None:
    """Run the cells without a result, except those that another process works on.

    Clients train in `workers` processes. The result is bit-identical for any number of them.

    Raises:
        ConfigError: if a setting of a cell is out of range, or differs from its unfinished run.
    """
    configs = [
        dataclasses.replace(
            cell.config(None if data_root is None else str(data_root / cell.dataset)),
            workers=workers,
        )
        for cell in cells
    ]
    for number, (cell, config) in enumerate(zip(cells, configs, strict=True), start=1):
        folder = runs / cell.table / cell.folder
        print(f"[{number}/{len(cells)}] {cell.table} ", end="")
        with locked(folder / "lock", wait=False) as mine:
            make = functools.partial(run_cell, cell, config, folder, fsl_rounds)
            if mine:
                write_once(cell.results, cell.name, make, command)
            else:
                print(f"{cell.name}: another process works on it", flush=True)


def run_cell(cell: Cell, config: Config, folder: Path, fsl_rounds: int) -> dict[str, Any]:
    """One run: the first rounds twice, then the rest in plaintext."""
    started = time.time()
    progress = Progress("accuracy")
    by_both = _by_both(cell, config, folder, min(fsl_rounds, cell.rounds)) if fsl_rounds else {}
    last = run_or_read(config, folder / "plain", progress)
    latest = curve(folder / "plain", "accuracy", cell.rounds)
    means = curve(folder / "plain", "mean_accuracy", cell.rounds)
    return {
        "cell": dataclasses.asdict(cell),
        "accuracy_percent": _final(latest),
        **({"mean_accuracy_percent": _final(means), "mean_curve": means} if means else {}),
        "accuracy_percent_last": 100 * latest[-1][1],
        "evaluations_averaged": min(LAST, len(latest)),
        "curve": latest,
        **summarised(last, "rounds", *_KEPT, "clipped_values", "segments"),
        **by_both,
        "clients_per_round": config.clients_per_round,
        "wall_seconds_of_last_start": round(time.time() - started),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**last["versions"], "machine": bench_measure.machine()},
    }


def _by_both(cell: Cell, config: Config, folder: Path, share: int) -> dict[str, Any]:
    """The first rounds through both servers, and in plaintext; they hold the same model then."""
    progress = Progress("accuracy")
    protocol = dataclasses.replace(config, rounds=share, aggregation="fsl")
    by_fsl = run_or_read(protocol, folder / "fsl", progress)
    by_plain = run_or_read(dataclasses.replace(config, rounds=share), folder / "plain", progress)
    if by_fsl["model_sha256"] != by_plain["model_sha256"]:
        raise RuntimeError(
            f"{cell.name}: after {share} rounds, fsl and plain have different models"
        )
    return {
        "fsl": {
            "rounds": share,
            **summarised(by_fsl, *_KEPT, "client_seconds"),
            "equals_plain": True,
            "both_servers_seconds": by_fsl["server_seconds_per_round"],
        }
    }


def _final(points: list[tuple[int, float]]) -> float:
    """Percent: the mean of a curve's last evaluations."""
    return 100 * float(np.mean([accuracy for _, accuracy in points[-LAST:]]))
