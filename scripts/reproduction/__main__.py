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
    din,
    din_auc,
    hashing,
    liars,
    preamble,
    privhfl_cells,
    privhfl_costs,
    recommendation,
    report,
    rivals,
    secemb,
    sefl,
    sefl_parties,
    sesa,
    systems,
)
from scripts.reproduction import corpus_statistics as statistics
from scripts.reproduction.results import TABLES as ONE_RUN
from scripts.reproduction.results import write_result
from training.sections import ConfigError

RUN_FOLDER = Path("runs") / "reproduce"
Options = argparse.Namespace


def _table9(options: Options) -> dict[str, Any]:
    return statistics.table9(str(options.data / "trec") if options.data else None)


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
        lambda o: din_auc.din_auc(o.data, RUN_FOLDER, o.rounds or 300),
    ),
    "liars": (
        "DIN where one client in twenty sends a thousand times its update (--seed of one run)",
        lambda o: liars.liars(o.data, RUN_FOLDER, o.rounds or liars.ROUNDS, o.seed[0]),
    ),
    "preamble": (
        "random blocks drawn in secret beside the largest blocks",
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
    "sefl": (
        "language models: perplexity by dropouts (--table 1) or blocks (--figure 4), --table costs",
        lambda o: (
            sefl_parties.parties(o.data, o.paillier_python)
            if o.part == "tablecosts"
            else sefl.part(o.data, RUN_FOLDER, o.seed, o.rounds, o.part, o.block)
        ),
    ),
    "privhfl-costs": (
        "bytes and seconds of a private query",
        lambda _: privhfl_costs.privhfl_costs(),
    ),
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
RUNS = {
    "table7": "accuracy by share of the weights",
    "table8": "accuracy by share of TREC's word rows",
    "beyond": "runs that the paper does not have",
    "recommendation": "recommenders on Amazon Beauty and Sports (--cell PRESET-DATASET)",
}
PRIVHFL = {
    "privhfl-accuracy": ("accuracy by queries and answering clients", privhfl_cells.accuracy_cells),
    "privhfl-heterogeneity": ("accuracy by alpha", privhfl_cells.heterogeneity_cells),
    "privhfl-studies": ("pictures, selection, iterations and more", privhfl_cells.study_cells),
    "privhfl-secure": ("one cell by the protocol", privhfl_cells.secure_cells),
}


def main() -> int:
    """Runs the command line."""
    parser = _parser()
    options = parser.parse_args()
    if (options.table == "sefl") != (options.part is not None):
        parser.error("sefl takes --table 1, --table costs or --figure 4, and the others none")
    line = " ".join(["scripts/reproduce", *sys.argv[1:]])
    command = re.sub(r"--data \S+", "--data DATA", line)  # where things lie is nobody's business
    command = re.sub(r"--(\w+)-python \S+", r"--\1-python .venv-\1/bin/python", command)
    if options.table == "report":
        report.write()
    elif options.table in TABLES:
        figures = TABLES[options.table][1](options)
        stamp = {
            "command": command,
            "machine": bench_measure.machine(),
            "date": time.strftime("%Y-%m-%d"),
        }
        name = "-".join(filter(None, [options.table, options.part]))
        write_result(ONE_RUN, name, {**stamp, **figures})
    elif options.table in PRIVHFL:
        of_task = PRIVHFL[options.table][1]
        tasks = options.dataset or ["mnist", "cifar10"]
        if "trec" in tasks:
            parser.error(f"--dataset trec is not of {options.table}: choose mnist or cifar10")
        privhfl_cells.run_cells(
            [
                cell for task in tasks for cell in of_task(task)
                if not options.cell or cell.label in options.cell
            ],
            seeds=options.seed, data=options.data, runs=RUN_FOLDER, command=command,
        )  # fmt: skip
    elif options.table == "recommendation":
        recommendation.run_recommenders(
            options.cell or ["din-beauty", "din-sports", "din-small-beauty"],
            options.seed,
            data=options.data,
            runs=RUN_FOLDER,
            rounds=options.rounds,
            fsl_rounds=options.fsl_rounds,
            command=command,
        )
    else:
        try:
            accuracy.run_cells(
                _cells(options),
                data_root=options.data,
                runs=RUN_FOLDER,
                fsl_rounds=options.fsl_rounds,
                workers=options.workers,
                command=command,
            )
        except ConfigError as error:
            parser.error(str(error))
    return 0


def _cells(options: Options) -> list[cells.Cell]:
    if options.table == "table7":
        percents = options.percent or [5, 100, 20, 60, 10, 40, 80]
        return cells.table7(
            options.dataset or ["trec"],
            percents,
            options.seed,
            options.rounds,
            options.full,
            server_rate=options.server_rate,
            server_momentum=options.server_momentum,
            server_decay=options.server_decay,
            average=options.average,
            augment=not options.no_augmentation,
            precision=options.precision,
            threads=options.threads,
            held_out=options.held_out,
        )
    if options.table == "table8":
        percents = options.percent or [0.0125, 1, 0.1, 10]
        return cells.table8(percents, options.seed, options.rounds, options.full)
    return cells.beyond()


def _parser() -> argparse.ArgumentParser:
    tables = {name: text for name, (text, _) in TABLES.items()} | RUNS
    tables |= {name: text for name, (text, _) in PRIVHFL.items()}
    tables["report"] = "tables and plots of the pages, from all of results/"
    listing = "\n".join(f"  {name:21} {text}" for name, text in tables.items())
    parser = argparse.ArgumentParser(
        description=__doc__ + "\ntables:\n" + listing,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", choices=tables, metavar="TABLE", help="see above")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data sets")
    _add_run_options(parser.add_argument_group("accuracy runs"))
    parts = parser.add_argument_group("sefl: one of").add_mutually_exclusive_group()
    for option, names, text in (
        ("--table", ("1", "costs"), "perplexity by dropouts, or bytes and seconds of each party"),
        ("--figure", ("4",), "perplexity by block size"),
    ):
        parts.add_argument(
            option,
            choices=[f"{option[2:]}{name}" for name in names],
            metavar="|".join(names),
            dest="part",
            type=lambda given, kind=option[2:]: f"{kind}{given}",
            help=text,
        )
    parser.add_argument(
        "--block",
        type=int,
        nargs="+",
        choices=sefl.BLOCKS,
        default=sefl.BLOCKS,
        help="sizes of sefl --figure 4, 1 always; default the paper's",
    )
    costs = parser.add_argument_group("costs")
    costs.add_argument("--large", action="store_true", help="table5: 2^25 weights, too (10 GB)")
    costs.add_argument("--clients", type=int, default=100, help="din: clients in the round")
    costs.add_argument("--paillier-python", help="sefl: Python of phe and gmpy2, for Paillier")
    costs.add_argument(
        "--flower-python", help="baselines, sesa, systems: Python of flwr 1.41, for SecAgg+"
    )
    return parser


def _add_run_options(runs: argparse._ArgumentGroup) -> None:
    datasets = sorted(cells.PRESET_OF)
    runs.add_argument(
        "--dataset", nargs="+", choices=datasets, help="default: trec, of privhfl-... both"
    )
    runs.add_argument(
        "--cell", nargs="+", metavar="NAME", help="privhfl-..., recommendation: only these"
    )
    runs.add_argument("--percent", type=float, nargs="+", help="only these; default: the paper's")
    runs.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    runs.add_argument(
        "--rounds",
        type=int,
        help="of a run, which goes on where a shorter one ended; default 1,000 of images, 500 of "
        "TREC, 300 of 100 users for din-auc, 100 of liars, 600 for recommendation, 60 of sesa and "
        "preamble, 30 of systems, 14 of 8 and 24 of 4 clients of sefl",
    )
    _add_cell_options(runs)
    runs.add_argument("--fsl-rounds", type=int, default=5, help="rounds also run by both servers")


def _add_cell_options(runs: argparse._ArgumentGroup) -> None:
    runs.add_argument(
        "--server-rate",
        type=float,
        default=1.0,
        help="table7: by which the servers multiply the mean update; the paper's is 1",
    )
    runs.add_argument(
        "--server-momentum",
        type=float,
        default=0.0,
        help="table7: of the servers' optimizer; the paper has none",
    )
    runs.add_argument(
        "--server-decay",
        type=float,
        default=1.0,
        help="table7: factor on the servers' rate after every ten rounds; default 1",
    )
    runs.add_argument(
        "--average",
        type=float,
        default=0.0,
        help="table7: evaluate the mean of the models over rounds, too, in which the older ones "
        "keep this weight; 0 (default): none",
    )
    runs.add_argument(
        "--precision",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="table7 of images: of training; float32 is many times faster on CPUs without "
        "bfloat16 instructions",
    )
    runs.add_argument(
        "--no-augmentation",
        action="store_true",
        help="table7 of cifar10: train on central crops, neither random ones nor mirror images",
    )
    runs.add_argument(
        "--held-out",
        action="store_true",
        help="table7: evaluate a tenth of the training data, held out to choose settings by",
    )
    runs.add_argument(
        "--threads", type=int, default=1, help="table7: of one run; sums may differ by them"
    )
    runs.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="tables 7 and 8, beyond: processes in which clients train side by side, with the same "
        "bits; default 1",
    )
    runs.add_argument("--full", action="store_true", help="6,000 rounds of MNIST, 5,000 of CIFAR")


if __name__ == "__main__":
    sys.exit(main())
