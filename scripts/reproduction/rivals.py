"""Rounds to an AUC on Amazon Beauty, for FedSubAvg, three baselines and our preset.

The baselines are FedAvg, FedProx and FedAdam. All four algorithms take the same steps at clients: a
few epochs of SGD on all samples of the user. They differ in how the servers use what clients send,
and in FedProx's term. FedProx needs these steps: with one gradient per round there is no distance
to pull back from.

The last row is the preset `deepfm` as it is: one gradient per client, lazy Adam at the servers.

The program chooses rates on the validation split, by the best AUC of a short run. It then runs each
algorithm once on the test split. There is one seed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from scripts.bench import measure as bench_measure
from scripts.reproduction.runs import Progress, changed, curve, data_folder, run_or_read, summarised
from torchfsl.errors import ParameterError
from training.config import Config
from training.presets import PRESETS
from training.sections import Local, Server

TARGETS: Final = (0.60, 0.65, 0.70)
PRESET: Final = "deepfm"
EPOCHS: Final = 3
ROUNDS, TRIAL_ROUNDS, CLIENTS = 150, 60, 50
EVERY: Final = 5
"""Rounds between evaluations, and so the grain of rounds to a target."""
RATES: Final = (1.0, 3.0, 10.0)
MUS: Final = (0.01, 0.1)
ADAM_RATES: Final = (0.01, 0.03)
Settings = tuple[Local, Server]


def steps(rate: float, proximal: float = 0.0) -> Local:
    """Local training of clients under all four algorithms."""
    return Local(optimizer="sgd", lr=rate, epochs=EPOCHS, proximal=proximal, together=True)


def candidates(name: str, client_rate: float) -> dict[str, Settings]:
    """The settings among which one is chosen, by what they say of themselves.

    Args:
        name: of the algorithm.
        client_rate: FedAvg's, where it is not what is chosen.
    """
    if name == "preset":
        preset = PRESETS[PRESET]
        return {"as it is": (dataclasses.replace(preset.local, together=True), preset.server)}
    if name == "fedprox":
        mus = {f"clients {client_rate:g}, mu {mu:g}": steps(client_rate, mu) for mu in MUS}
        return {label: (local, Server()) for label, local in mus.items()}
    if name == "fedadam":
        local, adam = steps(client_rate), Server(optimizer="adam", beta1=0.9, beta2=0.99)
        words = f"clients {client_rate:g}, servers"
        servers = {rate: dataclasses.replace(adam, lr=rate) for rate in ADAM_RATES}
        return {f"{words} {rate:g}": (local, server) for rate, server in servers.items()}
    server = Server(mean="trained") if name == "fedsubavg" else Server()
    return {f"clients {rate:g}": (steps(rate), server) for rate in RATES}


ALGORITHMS: Final = ("fedavg", "fedprox", "fedsubavg", "fedadam", "preset")


def rivals(data: Path | None, runs: Path) -> dict[str, Any]:
    """Choose on validation, run on test; finished runs are read again from `runs`."""
    beauty = data_folder(data, "rivals", "amazon-beauty")
    found: dict[str, Any] = {}
    client_rate = RATES[0]
    for name in ALGORITHMS:
        tried = candidates(name, client_rate)
        trials = {}
        for label, settings in tried.items() if len(tried) > 1 else ():
            trial = config_of(beauty, settings, "validation", TRIAL_ROUNDS)
            trials[label] = _trial(trial, runs / "rivals" / f"{name}, {label}, validation")
        label = max(trials, key=lambda one: trials[one]) if trials else next(iter(tried))
        if name == "fedavg":
            client_rate = tried[label][0].lr
        folder = runs / "rivals" / f"{name}, {label}"
        result = _run(config_of(beauty, tried[label], "test", ROUNDS), folder)
        found[name] = {"chosen": label, "validation_auc": trials, **result}
    return {
        "environment": bench_measure.environment(),
        "preset": PRESET,
        "epochs": EPOCHS,
        "rounds": ROUNDS,
        "trial_rounds": TRIAL_ROUNDS,
        "every": EVERY,
        "seed": 0,
        "clients_per_round": CLIENTS,
        "algorithms": found,
    }


def config_of(beauty: Path, settings: Settings, evaluate: Any, rounds: int) -> Config:
    """One run."""
    base = PRESETS[PRESET]
    local, server = settings
    return changed(
        base,
        data=str(beauty),
        rounds=rounds,
        clients_per_round=CLIENTS,
        aggregation="plain",
        evaluate=evaluate,
        eval_every=EVERY,
        threads=1,
        local=local,
        server=dataclasses.replace(server, average=0.0),
        recommendation={"ranked_users": 0},
    )


def _trial(config: Config, folder: Path) -> float:
    """The largest AUC of a run; 0 where training diverged."""
    try:
        return float(max(auc for _, auc in _run(config, folder)["curve"]))
    except ParameterError as error:
        if "NaN or infinite" not in str(error):
            raise
        print(f"{folder.name}: diverged", flush=True)
        return 0.0


def rounds_to(curve: list[tuple[int, float]], target: float) -> int | None:
    """The first evaluated round that reaches the target."""
    return next((number for number, auc in curve if auc >= target), None)


def _run(config: Config, folder: Path) -> dict[str, Any]:
    print(f"{folder.name}: {config.local}, {config.server}", flush=True)
    summary = run_or_read(config, folder, Progress("auc"))
    return {
        "curve": [(number, round(auc, 4)) for number, auc in curve(folder, "auc")],
        **summarised(summary, "exact_rounds", "clipped_values", "client_seconds"),
        "popularity_auc": summary["baselines"]["popularity_auc"],
    }
