"""`python -m training privhfl`: options, settings, and the run."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from torchfsl.errors import ProtocolError
from training.config import add_options
from training.privhfl.settings import Settings, TaskName

_DESCRIPTION = """\
Clients with unlike models learn from each other's answers to queries (PrivHFL). Each client trains
on its samples, makes query pictures from these samples, and asks other clients. Then the client
trains again, also on the pictures with the averaged answers. No client shows its samples, pictures
or model to another party.

querying
  plain      float answers in the clear: no protection, the baseline
  fixed      the integers of the protocol, in the clear
  secure     the protocol: a server and the answering client see only random numbers, the querying
             client only the sum of all answers. exact says whether this sum is bit-identical to
             that of `fixed`
"""

_EPILOG = """\
examples
  python -m training privhfl mnist --data FOLDER                        floats, about a minute
  python -m training privhfl mnist --data FOLDER --querying secure
  python -m training privhfl cifar10 --data FOLDER --control local      retraining without queries

DIR gets config.json, metrics.jsonl (one object per iteration, in which iteration 0 is the model
before any query), summary.json, curves.png and the models of every client. Accuracy is on the same
2,000 test pictures for all clients. A gain is the difference to iteration 0 of the same client.
Bytes are those of all clients together, by link and phase.

defaults of mnist (cifar10): 9 (6) clients with 100 (1000) samples each, 1000 (2500) queries per
client, in batches of 128 (32), --querying plain --expansion mixup --fraction 1 --iterations 1
--test 2000.
"""

_OPTIONS = {
    "data": "DIR|HUB_NAME|synthetic",
    **dict.fromkeys(("clients", "private", "queries", "iterations", "frac_bits"), "N"),
    **dict.fromkeys(("batch", "test", "seed", "threads"), "N"),
    **dict.fromkeys(("alpha", "lam", "fraction", "temperature"), "X"),
    **dict.fromkeys(("querying", "comparison", "expansion", "selection", "label"), ""),
    **dict.fromkeys(("control", "ring_bits"), ""),
}
"""Settings, except the task, and what stands for the value in the help."""
_DEFAULTS: dict[TaskName, Settings] = {
    "mnist": Settings(task="mnist"),
    "cifar10": Settings(task="cifar10", clients=6, private=1000, queries=2500, batch=32),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 for done, 1 for an inexact run, 2 for bad usage."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        settings = settings_from(options)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        default = Path("runs") / f"privhfl-{settings.task}-{settings.querying}-{stamp}"
        return _run(settings, options.out or default, options)
    except (ValueError, FileNotFoundError) as error:  # ours, and torchfsl's ParameterError
        parser.exit(2, f"{parser.prog}: {error}\n")
    except ProtocolError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted: continue with the same command, --out and --resume\n")


def make_parser() -> argparse.ArgumentParser:
    """The options; absent ones are None, and the task's defaults hold."""
    parser = argparse.ArgumentParser(
        prog="python -m training privhfl",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=get_args(TaskName))
    add_options(parser, Settings, _OPTIONS)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="folder of the run, which must not exist without --resume",
    )
    parser.add_argument("--resume", action="store_true", help="continuation of the run in --out")
    parser.add_argument("--quiet", action="store_true", help="only errors")
    return parser


def settings_from(options: argparse.Namespace) -> Settings:
    """The task's defaults, then the options.

    Raises:
        ConfigError: a setting is wrong.
        ValueError: options do not go together.
    """
    if options.resume and options.out is None:
        raise ValueError("--resume needs the folder of the run: add --out FOLDER")
    chosen = {name: getattr(options, name) for name in _OPTIONS}
    return dataclasses.replace(
        _DEFAULTS[options.task], **{n: value for n, value in chosen.items() if value is not None}
    )


def _run(settings: Settings, folder: Path, options: argparse.Namespace) -> int:
    if settings.threads:
        os.environ["TORCHFSL_THREADS"] = str(settings.threads)
    # Imported here, so that --help and mistakes in options answer at once.
    import torch

    from training.privhfl.allocator import keep_freed_memory
    from training.privhfl.experiment import run_experiment

    if settings.threads:
        torch.set_num_threads(settings.threads)
    keep_freed_memory()

    def say(text: str) -> None:
        if not options.quiet:
            print(text, flush=True)

    summary = run_experiment(settings, folder, resume=options.resume, say=say)
    say(
        f"accuracy {summary['baseline']:.4f} -> {summary['accuracy']:.4f}, "
        f"models {summary['model_sha256'][:16]}, files in {folder}"
    )
    return 1 if summary["exact"] is False else 0
