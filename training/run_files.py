"""Files of any run's folder: written whole, and refused to runs of other settings."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchfsl
from training.sections import ConfigError


def check_folder(folder: Path, config: Any, *, resume: bool, may_differ: Collection[str]) -> None:
    """Refuse a folder that is there, but for going on with the same run in it.

    Raises:
        ConfigError: it exists and `resume` is off, or holds a run of other settings.
    """
    settings = folder / "config.json"
    if folder.exists() and not resume:
        raise ConfigError(
            f"{folder} exists: add --resume to continue the run in it, or name another --out"
        )
    if settings.exists():
        check_same(settings, config, folder, may_differ=may_differ)
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds no run to resume: name another --out")


def check_same(file: Path, config: Any, folder: Path, *, may_differ: Collection[str]) -> None:
    """Refuse to resume a run with other settings.

    Args:
        file: JSON of the settings that the run began with.
        config: dataclass of the settings now.
        folder: of the run, for the message.
        may_differ: settings that do not alter what a round does.

    Raises:
        ConfigError: another setting differs.
    """
    saved = json.loads(file.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(dataclasses.asdict(config)))
    # What an older version did not know had its default.
    defaults = {
        field.name: json.loads(json.dumps(_plain(field.default)))
        for field in dataclasses.fields(config)
        if field.default is not dataclasses.MISSING
    }
    for name in now:
        before = saved.get(name, defaults.get(name))
        section = type(getattr(config, name))
        if isinstance(before, dict) and dataclasses.is_dataclass(section):
            before = {**json.loads(json.dumps(dataclasses.asdict(section()))), **before}
        if name not in may_differ and before != now[name]:
            raise ConfigError(
                f"{folder} holds a run with {name} = {before}, now it is {now[name]}: "
                "resume with the same settings, or name another --out"
            )


def _plain(default: Any) -> Any:
    """A setting's default as JSON has it."""
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.asdict(default)
    return default


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old text or the new one."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_settings(folder: Path, config: Any) -> None:
    """Write `config.json`, of a dataclass."""
    replace_file(folder / "config.json", json.dumps(dataclasses.asdict(config), indent=2) + "\n")


def versions() -> dict[str, str]:
    """What a run was made with, for its summary."""
    return {
        "torchfsl": torchfsl.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
