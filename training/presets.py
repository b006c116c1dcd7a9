"""The presets of `presets.toml`, as settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from training.config import Config, merge, read_toml
from training.sections import Encoding

_TABLES: Final = read_toml(Path(__file__).with_name("presets.toml"))

NARROW: Final = merge(Encoding(), _TABLES["narrow"]["encoding"])
"""For DIN: two bytes a value both ways."""


def narrowed(config: Config) -> Config:
    """Settings of DIN with two bytes a value."""
    task = config.recommendation
    rows = _TABLES["narrow"]["rows"].get(config.preset, task.rows_per_client)
    task = dataclasses.replace(task, rows_per_client=rows)
    return dataclasses.replace(config, encoding=NARROW, recommendation=task)


def _preset(name: str, own: dict[str, Any]) -> Config:
    needed = ("data", "rounds", "clients_per_round", "eval_every")
    shared = _TABLES["shared"].get(own.get("like"), {})
    first = {setting: own.get(setting, shared.get(setting)) for setting in needed}
    config = merge(Config(name, **first), shared)
    return merge(config, {setting: own[setting] for setting in own if setting != "like"})


PRESETS: Final = {name: _preset(name, own) for name, own in _TABLES["preset"].items()}
