"""Reproduce the tables and figures of the FSL paper, each by one command.

    scripts/reproduce table6          writes a line of results/tables.jsonl
    scripts/reproduce table7 --data DIR --dataset trec
    scripts/reproduce report          fills the pages' tables and draws plots from results/

Accuracy runs (table7, table8, beyond) keep what they need to go on in runs/reproduce/: the same
line again resumes them, and several processes may share one list. --data is a folder with mnist,
cifar10 and trec in it; without it data sets come from the Hugging Face Hub.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench import measure as bench_measure
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
from training.sections import ConfigError

RUN_FOLDER = Path("runs") / "reproduce"
Options = argparse.Namespace


def _table9(options: Options) -> dict[str, Any]:
    return corpus_statistics.table9(str(options.data / "trec") if options.data else None)


def _sefl(o: Options) -> dict[str, Any]:
    if o.part == "tablecosts":
        return sefl.parties(o.data, o.paillier_python)
    if o.part == "tablepapersize":
        return sefl.papersize()
    if o.part == "figure3":
        return sefl.figure3(o.data, RUN_FOLDER, o.seed[0], o.rounds or sefl.ROUNDS[4])
    if o.part == "table1":
        return sefl.table1(o.data, RUN_FOLDER, o.seed, o.rounds or sefl.ROUNDS[1])
    blocks = [1, *(block for block in o.block if block > 1)]
    return sefl.figure4(o.data, RUN_FOLDER, o.seed[0], o.rounds or sefl.ROUNDS[4], blocks)


TABLES: dict[str, tuple[str, Callable[[Options], dict[str, Any]]]] = {
    "table2": ("scenarios and policies", lambda _: communication.table2()),
    "table3": ("scale factors, and how often the paper's fail", lambda _: hashing.table3()),
    "table4": ("largest bins", lambda _: hashing.table4()),
    "table5": ("seconds, figures 6 and 7", lambda o: computation.table5(large=o.large)),
    "table6": ("bytes", lambda _: communication.table6()),
    "table9": ("words and samples of TREC", _table9),
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
    "privhfl-batches": ("a query in batches up to 64", lambda _: privhfl_costs.batches()),
    "systems": (
        "all systems on one task, MNIST",
        lambda o: systems.systems("mnist", o.data, o.rounds or systems.ROUNDS, o.flower_python),
    ),
    "systems-cifar10": (
        "the same on CIFAR-10",
        lambda o: systems.systems("cifar10", o.data, o.rounds or systems.ROUNDS, o.flower_python),
    ),
    "mnist": ("the introduction's example", lambda _: communication.mnist_example()),
    "rates": ("section 6's break-even rates", lambda _: communication.rates()),
    "baselines": ("FedAvg, dense shares, SecAgg+", lambda o: baselines.baselines(o.flower_python)),
}


def _table7(options: Options) -> list[cells.Cell]:
    percents = options.percent or [5, 100, 20, 60, 10, 40, 80]
    datasets = options.dataset or ["trec"]
    settings = {name: getattr(options, name) for name in cells.SETTINGS}
    lengths = options.rounds, options.full
    return cells.table7(datasets, percents, options.seed, *lengths, **settings)


def _table8(options: Options) -> list[cells.Cell]:
    percents = options.percent or [0.0125, 1, 0.1, 10]
    return cells.table8(percents, options.seed, options.rounds, options.full)


RUNS: dict[str, tuple[str, Callable[[Options], list[cells.Cell]]]] = {
    "table7": ("accuracy by share of the weights", _table7),
    "table8": ("accuracy by share of TREC's word rows", _table8),
    "beyond": ("runs that the paper does not have", lambda _: cells.beyond()),
}
PRIVHFL = {
    "privhfl-accuracy": ("accuracy by queries and answering clients", privhfl_cells.accuracy_cells),
    "privhfl-heterogeneity": ("accuracy by alpha", privhfl_cells.heterogeneity_cells),
    "privhfl-studies": ("pictures, selection, iterations and more", privhfl_cells.study_cells),
    "privhfl-secure": ("one cell by the protocol", privhfl_cells.secure_cells),
}
OTHERS = {
    "recommendation": "recommenders on Amazon Beauty and Sports (--cell PRESET-DATASET)",
    "privacy": "DIN's AUC by epsilon (--cell eps8-b4)",
    "report": "tables and plots of the pages, from all of results/",
}


def main() -> int:
    """Runs the command line."""
    parser = _parser()
    options = parser.parse_args()
    table = options.table
    if (table == "sefl") != (options.part is not None):
        parser.error("sefl takes one of --table and --figure, and the others none")
    line = " ".join(["scripts/reproduce", *sys.argv[1:]])
    command = re.sub(r"--data \S+", "--data DATA", line)  # paths of a machine stay there
    command = re.sub(r"--(\w+)-python \S+", r"--\1-python .venv-\1/bin/python", command)
    where: dict[str, Any] = {"runs": RUN_FOLDER, "command": command}
    if table == "report":
        report.write()
    elif table in TABLES:
        figures = TABLES[table][1](options)
        stamp = {"machine": bench_measure.machine(), "date": time.strftime("%Y-%m-%d")}
        name = "-".join(filter(None, [table, (options.part or "").replace("tablep", "p")]))
        write_result(ONE_RUN, name, {"command": command, **stamp, **figures})
    elif table in PRIVHFL:
        tasks = options.dataset or ["mnist", "cifar10"]
        if "trec" in tasks:
            parser.error(f"--dataset trec is not of {table}: choose mnist or cifar10")
        chosen = [cell for task in tasks for cell in PRIVHFL[table][1](task)]
        chosen = [cell for cell in chosen if not options.cell or cell.label in options.cell]
        privhfl_cells.run_cells(chosen, seeds=options.seed, data=options.data, **where)
    elif table == "recommendation":
        names = options.cell or ["din-beauty", "din-sports", "din-small-beauty"]
        lengths: dict[str, Any] = {"rounds": options.rounds, "fsl_rounds": options.fsl_rounds}
        recommendation.run_recommenders(names, options.seed, data=options.data, **lengths, **where)
    elif table == "privacy":
        names = options.cell or list(privacy.CELLS)
        privacy.run_privacy(names, options.seed, data=options.data, rounds=options.rounds, **where)
    else:
        lengths = {"fsl_rounds": options.fsl_rounds, "workers": options.workers}
        try:
            accuracy.run_cells(RUNS[table][1](options), data_root=options.data, **lengths, **where)
        except ConfigError as error:
            parser.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    tables = {name: entry[0] for name, entry in (TABLES | RUNS | PRIVHFL).items()} | OTHERS
    listing = "\n".join(f"  {name:21} {text}" for name, text in tables.items())
    parser = argparse.ArgumentParser(
        description=__doc__ + "\ntables:\n" + listing,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", choices=tables, metavar="TABLE", help="see above")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data sets")
    _add_run_options(parser.add_argument_group("accuracy runs").add_argument)
    parts = parser.add_argument_group("sefl: one of").add_mutually_exclusive_group()
    for option, names, text in (
        (
            "table",
            ("1", "costs", "papersize"),
            "perplexity by dropouts, bytes and seconds of each party, or at the paper's LSTM size",
        ),
        ("figure", ("3", "4"), "perplexity with noise, or by block size"),
    ):
        choices = [f"{option}{name}" for name in names]
        kind = option.__add__  # of --table 1 it makes table1
        shown: dict[str, Any] = {"choices": choices, "metavar": "|".join(names), "help": text}
        parts.add_argument(f"--{option}", dest="part", type=kind, **shown)
    text = "sizes of sefl --figure 4, 1 always; default the paper's"
    blocks: dict[str, Any] = {"choices": sefl.BLOCKS, "default": sefl.BLOCKS}
    parser.add_argument("--block", type=int, nargs="+", help=text, **blocks)
    costs = parser.add_argument_group("costs").add_argument
    costs("--large", action="store_true", help="table5: 2^25 weights, too (10 GB)")
    costs("--clients", type=int, default=100, help="din: clients in the round")
    costs("--paillier-python", help="sefl: Python of phe and gmpy2, for Paillier")
    costs("--flower-python", help="baselines, sesa, systems: Python of flwr 1.41, for SecAgg+")
    return parser


def _add_run_options(add: Callable[..., Any]) -> None:
    datasets = sorted(cells.PRESET_OF)
    add("--dataset", nargs="+", choices=datasets, help="default: trec, of privhfl-... both")
    add(
        "--cell", nargs="+", metavar="NAME", help="privhfl-..., recommendation, privacy: only these"
    )
    add("--percent", type=float, nargs="+", help="only these; default: the paper's")
    add("--seed", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    text = (
        "of a run, which goes on where a shorter one ended; default 1,000 of images, 500 of "
        "TREC, 300 of 100 users for din-auc, 100 of liars, 600 for recommendation, 60 of sesa and "
        "preamble, 30 of systems, 14 of 8 and 24 of 4 clients of sefl"
    )
    add("--rounds", type=int, help=text)
    for name, default, text in (
        ("server-rate", 1.0, "factor of the servers on the mean update; the paper's is 1"),
        ("server-momentum", 0.0, "of the servers' optimizer; the paper has none"),
        ("server-decay", 1.0, "factor on the servers' rate after every ten rounds; default 1"),
        ("average", 0.0, "weight of the older models in a mean of models that is also evaluated"),
    ):
        add(f"--{name}", type=float, default=default, help=f"table7: {text}")
    text = "table7 of images: of training; float32 is many times faster on CPUs without bfloat16"
    add("--precision", choices=("bfloat16", "float32"), default="bfloat16", help=text)
    text = "table7 of cifar10: train on central crops, neither random ones nor mirror images"
    add("--no-augmentation", dest="augment", action="store_false", help=text)
    text = "table7: evaluate a tenth of the training data, held out to choose settings by"
    add("--held-out", action="store_true", help=text)
    add("--threads", type=int, default=1, help="table7: of one run; sums may differ by them")
    text = "tables 7 and 8, beyond: processes of clients, with a bit-identical model; default 1"
    add("--workers", type=int, default=1, metavar="N", help=text)
    add("--full", action="store_true", help="6,000 rounds of MNIST, 5,000 of CIFAR")
    add("--fsl-rounds", type=int, default=5, help="rounds also run by both servers")


if __name__ == "__main__":
    sys.exit(main())
