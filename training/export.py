"""`python -m training export`: the model of a run as a file of torch."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from training.config import Config, merge
from training.presets import PRESETS
from training.section_checks import ConfigError

_DESCRIPTION = """\
Write the model of a finished or interrupted run as a plain state_dict: all parameters and buffers,
on the CPU, as of the run's last checkpoint. Read it without torchfsl:

  model.load_state_dict(torch.load("FILE", weights_only=True))

The task is built again to know the model, so start the command in the folder in which the run was
started, with its data in place.
"""


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m training export",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--torch",
        type=Path,
        metavar="FILE",
        required=True,
        help="file for the state_dict, 4 bytes per float32 value",
    )
    parser.add_argument("--force", action="store_true", help="replacement of an existing FILE")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        finished = export(options.run, options.torch, force=options.force)
    except (ValueError, FileNotFoundError) as error:  # ours, and torchfsl's ParameterError
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(f"{options.torch}: the model after {finished} rounds")
    return 0


def export(folder: Path, file: Path, *, force: bool) -> int:
    """Write the model; returns after how many rounds it is.

    Args:
        folder: of the run.
        file: appears in one step, whole.
        force: whether to replace a file that exists.

    Raises:
        ConfigError: the file exists, or the folder holds no run with a checkpoint.
        ParameterError: the task makes another model than the run had, or a value is not finite.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: add --force to replace the file, or choose another file")
    if not file.parent.is_dir():
        raise ConfigError(
            f"the folder {file.parent} does not exist: create the folder, or choose a file "
            "elsewhere"
        )
    config = _settings(folder)
    # Imported here, so that --help and mistakes in options answer at once.
    from training.attached import attach
    from training.checkpoint import CheckpointFolder
    from training.tasks.build import build_task

    saved = CheckpointFolder(folder / "checkpoint").load()
    if saved is None:
        raise ConfigError(
            f"{folder} has no checkpoint yet: continue this run with --resume, which writes one"
        )
    fed = attach(config, build_task(config)).fed
    fed.load(saved.state)
    part = file.with_name(f"{file.name}.part")
    fed.export(part)
    os.replace(part, file)
    return saved.round


def _settings(folder: Path) -> Config:
    try:
        saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        preset = PRESETS[saved["preset"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"expected the folder of a run of python -m training, got {folder} ({error!r}): pass "
            "the folder of --out, or one of its folders seed-S if the run has several seeds"
        ) from error
    return dataclasses.replace(merge(preset, saved), device="cpu")
