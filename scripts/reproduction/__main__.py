"""Reproduce the tables and figures of the FSL paper, each by one command.

    scripts/reproduce table6          writes a line of results/tables.jsonl
    scripts/reproduce table7 --data DIR --dataset trec
    scripts/reproduce report          fills the pages' tables and draws plots from results/

Accuracy runs (table7, table8, beyond) keep what they need to go on in runs/reproduce/: the same
line again resumes them, and several processes may share one list. --data is a folder with mnist,
cifar10 and trec in it; without it data sets come from the Hugging Face Hub.

Without --rounds a run has 1,000 of images, 500 of TREC, 300 of din-auc, 100 of liars, 600 of
recommendation, 60 of sesa and preamble, 30 of systems, 14 of sefl --table 1 and 24 of --figure 4.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.attacks import canary_audit
from scripts.bench import measure as bench_measure
from scripts.program import Options, UsageError, option, program
from scripts.reproduction import (
    accuracy,
    averages,
    baselines,
    cells,
    communication,
    computation,
    corpus_statistics,
    din,
    hashing,
    liars,
    preamble,
    privacy,
    privhfl_cells,
    privhfl_costs,
    privhfl_features,
    recommendation,
    report,
    rivals,
    secemb,
    sefl,
    sesa,
    sesa_attack,
    systems,
)
from scripts.reproduction.results import TABLES as ONE_RUN
from scripts.reproduction.results import write_result
from training.section_checks import ConfigError

RUN_FOLDER = Path("runs") / "reproduce"
_SEFL = ("1", "costs", "papersize")


def _sefl(o: Options) -> dict[str, Any]:
    if o.part == "costs":
        return sefl.parties(o.data, o.paillier_python)
    if o.part == "papersize":
        return sefl.papersize()
    if o.figure == "3":
        return sefl.figure3(o.data, RUN_FOLDER, o.seed[0], o.rounds or sefl.ROUNDS[4])
    if o.part == "1":
        return sefl.table1(o.data, RUN_FOLDER, o.seed, o.rounds or sefl.ROUNDS[1])
    blocks = [1, *(block for block in o.block if block > 1)]
    return sefl.figure4(o.data, RUN_FOLDER, o.seed[0], o.rounds or sefl.ROUNDS[4], blocks)


def _systems(task: Any, o: Options) -> dict[str, Any]:
    return systems.systems(task, o.data, o.rounds or systems.ROUNDS, o.flower_python)


TABLES: dict[str, tuple[str, Callable[[Options], dict[str, Any]]]] = {
    "table2": ("scenarios and policies", lambda _: communication.table2()),
    "table3": ("scale factors, and how often the paper's fail", lambda _: hashing.table3()),
    "table4": ("largest bins", lambda _: hashing.table4()),
    "table5": ("seconds, figures 6 and 7", lambda o: computation.table5(large=o.large)),
    "table6": ("bytes", lambda _: communication.table6()),
    "table9": (
        "words and samples of TREC",
        lambda o: corpus_statistics.table9(str(o.data / "trec") if o.data else None),
    ),
    "din": ("section 7.5", lambda o: din.din(o.clients)),
    "din-auc": (
        "DIN's AUC by round, three aggregations",
        lambda o: din.auc(o.data, RUN_FOLDER, o.rounds or 300),
    ),
    "liars": (
        "DIN where one client in twenty sends a thousand times its update (--seed of one run)",
        lambda o: liars.liars(o.data, RUN_FOLDER, o.rounds or liars.ROUNDS, o.seed[0]),
    ),
    "preamble": (
        "random blocks drawn in secret and the largest blocks",
        lambda o: preamble.preamble(o.data, RUN_FOLDER, o.rounds or preamble.ROUNDS),
    ),
    "canaries": (
        "lower bounds on epsilon by canaries, with planted faults",
        lambda _: canary_audit.planted(),
    ),
    "averages": (averages.TITLE, lambda o: averages.averages(RUN_FOLDER, o.seed)),
    "rivals": (
        "rounds to an AUC on Amazon Beauty: FedSubAvg, FedAvg, FedProx, FedAdam",
        lambda o: rivals.rivals(o.data, RUN_FOLDER),
    ),
    "secemb": ("bytes and seconds at SecEmb's shapes", lambda _: secemb.secemb()),
    "sesa": (
        "one server, clients of different widths: costs, accuracy by choice of shards",
        lambda o: sesa.sesa(o.data, RUN_FOLDER, o.seed, o.rounds or sesa.ROUNDS, o.flower_python),
    ),
    "sefl": (
        "language models: perplexity by dropouts (--table 1) or blocks (--figure 4), --table costs",
        _sefl,
    ),
    "privhfl-costs": (
        "bytes and seconds of a private query",
        lambda _: privhfl_costs.privhfl_costs(),
    ),
    "privhfl-tiny": (
        "a query of Tiny ImageNet's networks, random weights",
        lambda _: privhfl_costs.tiny(),
    ),
    "privhfl-features": (
        "how much of the feature space mixup covers",
        lambda o: privhfl_features.features(o.data),
    ),
    "privhfl-steps": ("sharing and aggregating a query", lambda _: privhfl_costs.steps()),
    "privhfl-batches": ("a query in batches up to 64", lambda _: privhfl_costs.batches()),
    "sesa-speed": (
        "rounds of SESA and FedRolex, each at its best rate",
        lambda o: sesa.speed(o.data, RUN_FOLDER, o.seed, o.rounds or sesa.SPEED_ROUNDS),
    ),
    "sesa-writers": (
        "each client a writer: DATA/femnist in LEAF's layout, else a made federated set",
        lambda o: sesa.writers(o.data, RUN_FOLDER, o.seed, o.rounds or sesa.ROUNDS),
    ),
    "sesa-attack": (
        "samples read off sums, section III, for 2 to 30 clients",
        lambda o: sesa_attack.sesa_attack(o.data),
    ),
    "systems": ("all systems on one task, MNIST", functools.partial(_systems, "mnist")),
    "systems-cifar10": ("the same on CIFAR-10", functools.partial(_systems, "cifar10")),
    "mnist": ("the introduction's example", lambda _: communication.mnist_example()),
    "rates": ("section 6's break-even rates", lambda _: communication.rates()),
    "baselines": ("FedAvg, dense shares, SecAgg+", lambda o: baselines.baselines(o.flower_python)),
}
"""By name what a table is, and a function that measures its figures in one go."""


def _where() -> dict[str, Any]:
    """The folder of unfinished runs, and the command without paths."""
    line = " ".join(["scripts/reproduce", *sys.argv[1:]])
    command = re.sub(r"--data \S+", "--data DATA", line)
    command = re.sub(r"--(\w+)-python \S+", r"--\1-python .venv-\1/bin/python", command)
    return {"runs": RUN_FOLDER, "command": command}


def _accuracy(chosen: list[cells.Cell], o: Options) -> None:
    lengths = {"fsl_rounds": o.fsl_rounds, "workers": o.workers}
    try:
        accuracy.run_cells(chosen, data_root=o.data, **lengths, **_where())
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _table7(o: Options) -> list[cells.Cell]:
    percents = o.percent or [5, 100, 20, 60, 10, 40, 80]
    settings = {name: getattr(o, name) for name in cells.SETTINGS if name != "augment"}
    settings["augment"] = not o.no_augmentation
    return cells.table7(o.dataset or ["trec"], percents, o.seed, o.rounds, o.full, **settings)


def _table8(o: Options) -> list[cells.Cell]:
    return cells.table8(o.percent or [0.0125, 1, 0.1, 10], o.seed, o.rounds, o.full)


def _privhfl(make: Callable[[Any], list[privhfl_cells.Cell]], o: Options) -> None:
    tasks = o.dataset or ["mnist", "cifar10"]
    if "trec" in tasks:
        raise UsageError(f"{o.table} does not use --dataset trec: choose mnist or cifar10")
    chosen = [cell for task in tasks for cell in make(task)]
    chosen = [cell for cell in chosen if not o.cell or cell.label in o.cell]
    privhfl_cells.run_cells(chosen, seeds=o.seed, data=o.data, **_where())


def _recommendation(o: Options) -> None:
    names = o.cell or ["din-beauty", "din-sports", "din-small-beauty"]
    lengths = {"rounds": o.rounds, "fsl_rounds": o.fsl_rounds}
    recommendation.run_recommenders(names, o.seed, data=o.data, **lengths, **_where())


def _privacy(o: Options) -> None:
    names = o.cell or list(privacy.CELLS)
    lengths = {"rounds": o.rounds, "fsl_rounds": o.fsl_rounds}
    privacy.run_privacy(names, o.seed, data=o.data, **lengths, **_where())


RUNS: dict[str, tuple[str, Callable[[Options], None]]] = {
    "table7": ("accuracy by share of the weights", lambda o: _accuracy(_table7(o), o)),
    "table8": ("accuracy by share of TREC's word rows", lambda o: _accuracy(_table8(o), o)),
    "bins": (
        "accuracy by public bins, and by the largest of all",
        lambda o: _accuracy(
            cells.bins(o.dataset or ["trec", "cifar10"], o.percent or [1, 5], o.seed, o.rounds), o
        ),
    ),
    "beyond": ("runs that the paper does not have", lambda o: _accuracy(cells.beyond(), o)),
    "privhfl-accuracy": (
        "accuracy by queries and answering clients",
        lambda o: _privhfl(privhfl_cells.accuracy_cells, o),
    ),
    "privhfl-heterogeneity": (
        "accuracy by alpha",
        lambda o: _privhfl(privhfl_cells.heterogeneity_cells, o),
    ),
    "privhfl-studies": (
        "pictures, selection, iterations and more",
        lambda o: _privhfl(privhfl_cells.study_cells, o),
    ),
    "privhfl-secure": (
        "one cell by the protocol",
        lambda o: _privhfl(privhfl_cells.secure_cells, o),
    ),
    "recommendation": (
        "recommenders on Amazon Beauty and Sports (--cell PRESET-DATASET)",
        _recommendation,
    ),
    "privacy": ("DIN's AUC by epsilon (--cell eps8-b4 or servers-eps8-b4)", _privacy),
    "report": ("tables and plots of the pages, from all of results/", lambda _: report.write()),
}
"""By name what runs are, and a function that makes those without a result."""

ENTRIES = {name: text for name, (text, _) in (TABLES | RUNS).items()}
__doc__ = f"{__doc__}\ntables:\n" + "\n".join(f"  {n:21} {text}" for n, text in ENTRIES.items())


@program(
    option("table", choices=ENTRIES, metavar="TABLE", about="name of a table, see above"),
    option("--data", Path, "folder of the data sets", metavar="DIR"),
    option("--dataset", nargs="+", choices=sorted(cells.PRESET_OF), about="default: trec or all"),
    option("--cell", nargs="+", about="privhfl-..., recommendation, privacy: only these"),
    option(
        "--percent",
        float,
        "shares of the weights, in percent (default: those of the paper)",
        nargs="+",
    ),
    option("--seed", [0, 1, 2]),
    option("--rounds", int, "rounds per run, which continue a shorter run"),
    option("--full", False, "6,000 rounds of MNIST, 5,000 of CIFAR"),
    option("--fsl-rounds", 5, "rounds that both servers also run, or 0"),
    option("--server-rate", 1.0, "table7: factor of the servers for the mean update"),
    option("--server-momentum", 0.0, "table7: momentum of the servers' optimizer (0 in the paper)"),
    option("--server-decay", 1.0, "table7: factor for the servers' rate after every ten rounds"),
    option(
        "--average",
        0.0,
        "table7: weight of earlier models in a mean model, which is also evaluated",
    ),
    option(
        "--precision",
        "bfloat16",
        "table7 of images: precision of training (float32 is faster on CPUs without bfloat16)",
        choices=("bfloat16", "float32"),
    ),
    option("--no-augmentation", False, "table7 of cifar10: training on central crops"),
    option(
        "--held-out",
        False,
        "table7: evaluation on a tenth of the training data, to choose settings",
    ),
    option("--threads", 1, "table7: threads of one run (sums may depend on them)"),
    option(
        "--workers",
        1,
        "table7, table8, beyond: processes that train clients (the model does not change)",
    ),
    option(
        "--table",
        about="sefl: table by dropouts, or of costs",
        choices=_SEFL,
        dest="part",
    ),
    option(
        "--figure",
        about="sefl: figure of perplexity with noise, or by block size",
        choices=["3", "4"],
    ),
    option(
        "--block",
        list(sefl.BLOCKS),
        "sefl --figure 4: block sizes, to which 1 is added",
        choices=sefl.BLOCKS,
    ),
    option("--large", False, "table5: also 2^25 weights (10 GB of memory)"),
    option("--clients", 100, "din: clients in the round"),
    option("--paillier-python", about="sefl: Python with phe and gmpy2, for Paillier"),
    option("--flower-python", about="baselines, sesa, systems: Python with flwr 1.41, for SecAgg+"),
    finds=False,
)
def main(options: Options) -> None:
    """Run one table."""
    table, parts = options.table, [options.part, options.figure]
    if parts.count(None) != (1 if table == "sefl" else 2):
        raise UsageError(
            "sefl needs --table or --figure, and other tables need neither: correct these options"
        )
    if table in RUNS:
        RUNS[table][1](options)
        return
    figures = TABLES[table][1](options)
    stamp = {"machine": bench_measure.machine(), "date": time.strftime("%Y-%m-%d")}
    part = f"-table{options.part}" if options.part else f"-figure{options.figure}"
    name = table + (part if table == "sefl" else "")
    write_result(ONE_RUN, name, {"command": _where()["command"], **stamp, **figures})
