"""DIN on Amazon Beauty under differential privacy: AUC by epsilon. Runs resume.

Every run adds the noise of both servers, drawn from the seed, to sums in the clear (`plain`). The
first `--fsl-rounds` rounds of a cell that begins with `servers-` also go through both servers with
the same noise, and must end with an equal model. Cohorts take all users in one order, which keeps
the limits.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from scripts.reproduction.recommendation import run
from scripts.reproduction.results import read_results, write_result
from scripts.reproduction.runs import data_folder
from training.config import Config
from training.presets import PRESETS

FEW: Final[dict[str, Any]] = {"max_participations": 4, "min_separation": 22}
MANY: Final[dict[str, Any]] = {"max_participations": 8, "min_separation": 11}
CELLS: Final[dict[str, tuple[int, float, dict[str, Any]]]] = {
    "none-b4": (1000, 0.01, {**FEW, "epsilon": 0.0}),
    "eps8-b4": (1000, 0.04, {**FEW, "epsilon": 8.0}),
    "eps8-b8": (2000, 0.04, {**MANY, "epsilon": 8.0}),
    "eps8-b4-independent": (1000, 0.01, {**FEW, "epsilon": 8.0, "band": 1}),
    "eps2-b4": (1000, 0.06, {**FEW, "epsilon": 2.0}),
    "eps2-b8": (2000, 0.06, {**MANY, "epsilon": 2.0}),
    "eps2-b8-list": (2000, 0.03, {**MANY, "epsilon": 2.0, "rows": 500}),
}
"""By name the reports of a round, the servers' rate, and settings of `privacy`."""
SERVERS: Final = "servers-"
TRIAL: Final = "trial-"
"""`trial-CELL-RATE`: a cell with another rate, evaluated on what is held out for such choices."""


def run_privacy(
    names: list[str],
    seeds: list[int],
    *,
    data: Path | None,
    runs: Path,
    rounds: int | None,
    fsl_rounds: int,
    command: str,
) -> None:
    """Run what has no result yet, all cells of a seed before the next seed.

    Args:
        names: cells.
        seeds: a run for each.
        data: folder of the data sets.
        runs: what unfinished runs need is kept there.
        rounds: of a run; None for the preset's.
        fsl_rounds: of a run through both servers, where fewer.
        command: goes into the result.

    Raises:
        SystemExit: no data, or an unknown cell.
        RuntimeError: both servers make another model than the sums in the clear.
    """
    folder = data_folder(data, "privacy", "amazon-beauty")
    for name, seed in ((name, seed) for seed in seeds for name in names):
        config = config_of(name, folder, seed, rounds)
        through = name.startswith(SERVERS)
        if through:
            config = dataclasses.replace(config, rounds=min(fsl_rounds, config.rounds))
        label = f"{name}-{config.rounds}-seed{seed}"
        if label in read_results("privacy"):
            print(f"{label}: is here; remove its result to run it again", flush=True)
            continue
        print(label, flush=True)
        result = run(config, runs / "privacy" / label, 0)
        if through:
            plain, result = result, run(config, runs / "privacy" / label, config.rounds)
            if plain["model_sha256"] != result["model_sha256"]:
                raise RuntimeError(f"{label}: fsl and plain have different models")
        asked = dataclasses.asdict(config.privacy)
        found = {"cell": name, "privacy": asked, **result, "command": command}
        write_result("privacy", label, found)


def config_of(name: str, data: Path, seed: int, rounds: int | None) -> Config:
    """Settings of a cell; the gradients of a round's clients are taken together."""
    cell, rate = name.removeprefix(SERVERS), ""
    if name.startswith(TRIAL):
        cell, _, rate = name.removeprefix(TRIAL).rpartition("-")
    if cell not in CELLS:
        known = f"{', '.join(CELLS)}, {SERVERS}CELL or {TRIAL}CELL-RATE"
        raise SystemExit(f"--cell is {name}: choose one of {known}")
    cohort, usual, changes = CELLS[cell]
    base = PRESETS["din-dp"]
    return dataclasses.replace(
        base,
        data=str(data),
        rounds=rounds or base.rounds,
        seed=seed,
        clients_per_round=cohort,
        aggregation="plain",
        eval_every=30,
        threads=1,
        local=dataclasses.replace(base.local, together=True),
        evaluate="validation" if rate else base.evaluate,
        server=dataclasses.replace(base.server, lr=float(rate or usual)),
        privacy=dataclasses.replace(base.privacy, rounds=rounds or base.rounds, **changes),
        recommendation=dataclasses.replace(base.recommendation, ranked_users=0),
    )
