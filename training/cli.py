"""The experiment command: options, settings, and the run from start to summary."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from torchfsl.errors import Error
from training.config import Config, add_options, merge, read_toml
from training.effect import idle_under_aggregation, refuse_idle
from training.presets import PRESETS
from training.section_checks import ConfigError

_DESCRIPTION = """\
Train a model federatedly in one process, and compare every round with the plaintext sum.

presets
  din          Deep Interest Network. Every user is a client, which retrieves only its embedding
               rows privately (PSR) and sends only these rows (SSA), with DPFs. din-small has
               smaller hidden layers, din-dp adds differential privacy, and din-published has the
               model and the servers' optimizer of the paper
  mf, ncf, deepfm, sasrec
               other recommenders on the same data: matrix factorisation, neural collaborative
               filtering, a factorisation machine with a network, and self-attention
  ctr-deepfm   DeepFM for clicks with fields of categories and numbers (Criteo, Avazu). A client
               retrieves the rows of its values
  own          your own model: --task MODULE:NAME (see the page 'Your own model or data')
  textcnn      sentence classifier. Each of 4 clients sends the 10 % of word rows that changed most
  cnn-mnist    CNN of McMahan et al. Each of 10 clients (of 100) sends 5 % of all weights and keeps
               the other changes as a residual
  cnn-cifar10  the same on CIFAR-10
  lstm-wikitext2, transformer-wikitext2
               language models. Each of 100 clients has one part of the text. With blocks of b
               ([language] block, block_embedding) a matrix has 2b - 1 values for every b * b
  mlp-mnist-widths, cnn-mnist-widths, cnn-cifar10-widths
               networks in shards. A third of the clients trains all units of every layer, a third
               trains half of the units and a third a quarter, with other units in each round

other commands, each with a separate --help
  python -m training privhfl    clients with unlike models that learn from each other's answers
  python -m training compare    table, figure and page of runs
  python -m training export     the model of a run, as a file for torch.load

aggregations (with one seed, the models of plain, fsl and sesa are bit-identical. With
[rest] policy = "dense", the models of dense and sefl are also equal to that of plain)
  fsl          two servers and DPFs: neither server learns the rows or any value
  dense        two servers and additive shares of every parameter, 4 bytes each: no submodels
  sesa         one server and clients of different widths (presets ...-widths): coded submodels,
               with dropouts up to the number in the plan; only in this process
  sefl         one server adds encrypted updates, and another decrypts the masked sum: every
               parameter, 15 bytes each; needs the extra homomorphic; only in this process
  plain        the same quantised integers, added in the clear: no protection, the baseline
  central      for recommenders and own tasks: the same samples trained in one place, without
               clients or encoding, in batches of [local] batch_size
"""

_EPILOG = """\
examples
  python -m training din --rounds 20                        synthetic data, about a minute
  python -m training din --data FOLDER                      FOLDER has sequences.txt.gz ("user item
                                                            item ...", one line per user, oldest
                                                            item first) and item2attributes.json.gz,
                                                            or the files of MovieLens (ratings.dat,
                                                            u.data or ratings.csv), or RecBole's
                                                            NAME.inter and NAME.item
  python -m training din --data FILE.csv --columns user=uid,item=sku,time=at
  python -m training ctr-deepfm --data train.tsv            Criteo as published: label, 13 numbers,
                                                            26 categories, no line of names
  python -m training ctr-deepfm --data train.csv --columns label=click,client=device_ip,fields=*
                                                            Avazu. Without client=, [ctr] clients
                                                            get the lines at random. numeric=A+B
                                                            are numbers, time=A sorts the lines
  python -m training own --task my_model:Task               your own model, in my_model.py
  python -m training lstm-wikitext2 --data FOLDER           FOLDER has wiki.train.tokens,
                                                            wiki.valid.tokens, wiki.test.tokens
                                                            (or .gz: text, a paragraph per line)
  python -m training cnn-mnist --data FOLDER --aggregation dense --out runs/mnist-dense
  python -m training mlp-mnist-widths --data FOLDER --aggregation sesa
  python -m training din --data FOLDER --out runs/din --resume      continues an interrupted run
  python -m training din --seeds 0,1,2 --out runs/din3              mean and deviation of 3 runs
  python -m training compare runs/a runs/b --html ab.html           table and page of two runs
  python -m training export runs/a --torch a.pt             the model of a run, for torch.load

Ctrl-C ends a run after its round, with a checkpoint. Then --resume continues the run, and the
result is bit-identical. A second Ctrl-C ends the run at once, and --resume continues from the last
checkpoint.

DIR gets config.json, metrics.jsonl (one object per round), summary.json, curves.png, checkpoint/.
Bytes and client_seconds are means per client, to or from all servers together. server_seconds is
the time of all servers together for the whole round. In summary.json, bytes_by_phase has the bytes
of each kind of message, and bytes_by_width the same for the clients of each width.
'exact' says whether the aggregate is bit-identical to the plaintext sum of the quantised updates.

FILE.toml overrides the preset, and options override FILE.toml. The page 'Settings of an experiment'
lists all sections and settings. For example
  rounds = 50
  [local]
  lr = 0.05
  [rest]
  policy = "blocks"
  amount = 0.05
or, for the presets ...-widths, whose clients then train all or half of each layer
  [sesa]
  budgets = [1.0, 0.5]
  collusion = 0.2
The trainer rejects a setting that has no effect because of the preset or another setting. It prints
the settings of a file that only the aggregation does not use.
"""


def _seeds(text: str) -> list[int]:
    """`0,1,2` as numbers, each once."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers with commas between them, such as 0,1,2, got {text!r}"
        ) from error
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} has a seed twice: remove the second one")
    return seeds


_SETTINGS: Final = {
    "data": "DIR|FILE|HUB_NAME|synthetic",
    "task": "MODULE:NAME",
    "rounds": "N",
    "clients_per_round": "N",
    "min_clients": "N",
    "dropouts": "SHARE",
    "eval_every": "N",
    "patience": "N",
    "checkpoint_every": "N",
    "seed": "S",
    "servers": "in-process|URL0,URL1",
    "tls": "DIR",
    "threads": "N",
    "workers": "N",
    "device": "D",
    "evaluate": "",
    "aggregation": "",
    "above_break_even": "",
    "replace": "",
}
"""Settings that are options, and what stands for the value in the help."""

_VALUE_OPTIONS: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    (
        "columns", "user=A,item=B,...", str,
        "columns of a CSV, TSV or Parquet file by role (user, item, time, category, or for clicks "
        "label, fields, numeric, client, time)",
    ),
    (
        "seeds", "S,S,...", _seeds,
        "seeds of several runs, in folders seed-S of DIR, with a table of means and deviations, "
        "curves.png and report.html at the end",
    ),
    (
        "out", "DIR", Path,
        "folder of the run, which must not exist without --resume (default: "
        "runs/PRESET-AGGREGATION-TIME)",
    ),
    ("config", "FILE.toml", Path, "file of settings, also of those without an option (see below)"),
)  # fmt: skip
_SWITCHES = (
    ("resume", "continuation of the run in --out from its last checkpoint"),
    ("tensorboard", "also event files in DIR/tensorboard (for tensorboard --logdir DIR)"),
    ("mlflow", "also a run of MLflow, at the address in MLFLOW_TRACKING_URI"),
    ("wandb", "also a run of Weights & Biases"),
    ("quiet", "no progress and no tables, only errors and settings without effect"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 some round was not exact, 2 bad usage."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    folder = options.out
    try:
        config = config_from(options)
        folder = options.out or _default_folder(config)
        if options.seeds is not None:
            return _run_seeds(config, folder, options)
        return _run(config, folder, options)
    except (ValueError, FileNotFoundError) as error:  # ours, and torchfsl's ParameterError
        parser.exit(2, f"{parser.prog}: {error}\n")
    except Error as error:  # a round that must not be opened, or servers that are gone
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(
            130, f"\ninterrupted: continue with the same command and --out {folder} --resume\n"
        )


def make_parser() -> argparse.ArgumentParser:
    """The options. Defaults are the preset's, so absent options are None."""
    parser = argparse.ArgumentParser(
        prog="python -m training",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "preset", choices=sorted(PRESETS), metavar="PRESET", help=", ".join(sorted(PRESETS))
    )
    for name, metavar, kind, text in _VALUE_OPTIONS:
        parser.add_argument(f"--{name}", metavar=metavar, type=kind, help=text)
    add_options(parser, Config, _SETTINGS)
    kernels = ("auto", "portable", "native")
    parser.add_argument("--backend", choices=kernels, help="kernels of torchfsl (default: auto)")
    for name, text in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return parser


def config_from(options: argparse.Namespace) -> Config:
    """Preset, then TOML file, then options.

    Raises:
        ConfigError: a setting is wrong.
    """
    config = PRESETS[options.preset]
    if options.config is not None:
        overrides = read_toml(options.config)
        if (preset := overrides.pop("preset", options.preset)) != options.preset:
            raise ConfigError(
                f"{options.config} is for the preset {preset}, and the command names "
                f"{options.preset}: write {preset} in the command"
            )
        config = merge(config, overrides)
    chosen = {name: getattr(options, name) for name in _SETTINGS}
    chosen["replace"] = options.replace or None
    if options.seed is not None and options.seeds is not None:
        raise ConfigError("expected --seed or --seeds, got both: leave out one of them")
    if options.resume and options.out is None:
        raise ConfigError("--resume needs the folder of the run: add --out FOLDER")
    given = {name: value for name, value in chosen.items() if value is not None}
    if options.columns is not None:
        given["ctr" if config.is_clicks else "recommendation"] = {"columns": options.columns}
    config = merge(config, given)
    refuse_idle(config, PRESETS[options.preset], given.keys())
    if config.servers != "in-process" and (not config.tls or config.servers.count(",") != 1):
        raise ConfigError(
            "--servers needs two addresses and a folder of certificates: pass --servers URL0,URL1 "
            "--tls FOLDER"
        )
    return config


def _default_folder(config: Config) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.preset}-{config.aggregation}-{stamp}"


def _run(config: Config, folder: Path, options: argparse.Namespace) -> int:
    if options.backend is not None:
        os.environ["TORCHFSL_BACKEND"] = options.backend
    if config.threads:
        os.environ["TORCHFSL_THREADS"] = str(config.threads)
    # Imported here, so that --help and mistakes in options answer at once.
    import torch

    from training.experiment import Listener, run_experiment
    from training.listeners import TRACKERS, Console

    logging.basicConfig(level=logging.ERROR if options.quiet else logging.WARNING)
    if not options.quiet:  # how many lines, duplicates and ties a file has
        logging.getLogger("training.data").setLevel(logging.INFO)
    limits = [limit for limit in (config.threads, config.torch_threads) if limit]
    if limits:
        torch.set_num_threads(min(limits))
    console: Listener = Console(quiet=options.quiet)
    for tracker in TRACKERS:
        if getattr(options, tracker.package):
            console = tracker(config, folder, console)
    if idle := idle_under_aggregation(config, PRESETS[config.preset]):
        # Also with --quiet: noise that is asked for and not added is no progress.
        told = f"settings without effect under {config.aggregation}: {', '.join(idle)}"
        print(told, file=sys.stderr)
    summary = run_experiment(config, folder, resume=options.resume, console=console)
    exact = summary["exact_rounds"] in (None, summary["rounds"])
    retrieved = summary["exact_retrieval_rounds"] in (None, summary["rounds"])
    return 0 if exact and retrieved else 1


def _run_seeds(config: Config, folder: Path, options: argparse.Namespace) -> int:
    """A run for each seed, and all of them side by side; finished ones are kept on --resume."""
    status = 0
    folders = [folder / f"seed-{seed}" for seed in options.seeds]
    for seed, own in zip(options.seeds, folders, strict=True):
        if not (options.resume and (own / "summary.json").exists()):
            status |= _run(merge(config, {"seed": seed}), own, options)
    from training.compare import page
    from training.curves import plot_rows
    from training.runs import Run, rows_of, table

    rows = rows_of([Run.read(own) for own in folders])
    plot_rows(rows, folder / "curves.png")
    (folder / "report.html").write_text(page(rows), encoding="utf-8")
    if not options.quiet:
        print(f"{rows[0].runs[0].metric} of {len(folders)} seeds\n{table(rows)}")
    return status
